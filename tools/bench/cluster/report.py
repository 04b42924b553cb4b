"""What `cutset bench cluster` prints: the steps as a table, how they were measured, and whether promises hold."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from ...report.console import make_console, print_columns
from ...units import NONE, bytes_text, count_text, percent_text, seconds_text
from .lockstep_vs_pipelined import Found, Row

COLUMNS = (
    "step",
    "plan",
    "predicted",
    "measured",
    "predicted / measured",
    "against lock-step",
    "bytes sent",
    "real compute",
    "without emulation",
)


def cells(row: Row, found: Found) -> tuple[str, ...]:
    """A row of the table."""
    variant = row.variant
    return (
        variant.name,
        variant.judged.name,
        seconds_text(variant.simulation.step_s),
        seconds_text(row.measured_s),
        f"{row.ratio:.2f}",
        f"{found.lock_step.measured_s / row.measured_s:.2f} times as fast",
        bytes_text(variant.bytes_sent),
        percent_text(row.real_share),
        NONE if row.plain_s is None else seconds_text(row.plain_s),
    )


def conditions(found: Found) -> list[str]:
    """How it was measured, in sentences."""
    asked, link = found.asked, found.link
    lines = [
        f"{asked.machines} name spaces of this host at one switch; each link carries {count_text(8 * asked.rate)}bit/s "
        f"each way, of which {count_text(found.cluster.bandwidth)}B/s can be tensors; a raw TCP connection got "
        f"{count_text(link.raw)}B/s. All tensors travel over TCP, encrypted.",
        f"Before, between two machines: a small message takes {seconds_text(link.points[0][1])}, one of "
        f"{bytes_text(link.points[-1][0])} {seconds_text(link.points[-1][1])}. "
        "Latency and the cost of a message are from there, the bandwidth is the one asked for.",
    ]
    if found.flops is None:
        lines.append(f"Compute is real: {found.cores} cores, whose rates a probe measured before.")
    else:
        lines.append(
            f"Compute is emulated, for this host has {found.cores} cores: a machine does the real work of each segment "
            f"and then sleeps, so that it takes as long as by the cost model at {count_text(found.flops)}FLOP/s. This "
            "tests what is predicted of messages and of their order, not of operators. Real compute: the part of those "
            "seconds in which a core of this host was at work, for messages too."
        )
    steps = ", ".join(f"{count}: {seconds_text(seconds)}" for count, seconds in sorted(found.candidates.items()))
    lines.append(f"Predicted steps by number of micro-batches, of which the shortest was run: {steps}.")
    lines.append(f"Medians of {asked.rounds} rounds of {asked.steps} steps, in which the rows take turns.")
    return lines


def print_found(found: Found) -> None:
    """Print it all."""
    console = make_console()
    console.print(Text(f"{found.asked.spec.model} on an emulated cluster\n", style="bold"))
    print_columns(console, COLUMNS, [cells(row, found) for row in found.rows], left=2)
    for line in conditions(found):
        console.print(Text(line))
    for words, holds in found.kept.items():
        console.print(
            Text(f"{'holds' if holds else 'does not hold'}: {words}", style="bold green" if holds else "bold red")
        )


def as_data(found: Found) -> dict[str, Any]:
    """For JSON."""
    return {
        "task": found.asked.spec.model,
        "machines": found.asked.machines,
        "rate": found.asked.rate,
        "cores": found.cores,
        "emulated_flops": found.flops,
        "link": {"raw": found.link.raw, "points": found.link.points, "message_s": found.link.message_s},
        "latency_s": found.cluster.latency_s,
        "bandwidth": found.cluster.bandwidth,
        "predicted_by_micro_batches": found.candidates,
        "rows": [_row(row) for row in found.rows],
        "gain": found.gain,
        "promises": found.kept,
        "conditions": conditions(found),
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "step": row.variant.name,
        "micro_batches": row.variant.micro_batches,
        "plan": row.variant.judged.name,
        "predicted_s": row.variant.simulation.step_s,
        "measured_s": row.measured_s,
        "rounds": row.rounds,
        "ratio": row.ratio,
        "bytes_sent": row.variant.bytes_sent,
        "real_share": row.real_share,
        "plain_s": row.plain_s,
    }


def promise_lines(found: Found) -> Sequence[str]:
    """Whether each promise holds, as lines of a page."""
    return [f"{'Holds' if holds else 'Does not hold'}: {words}." for words, holds in found.kept.items()]
