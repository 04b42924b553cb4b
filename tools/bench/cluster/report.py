"""What `cutset bench cluster` reports: the steps as a table, how they were measured, and whether promises hold."""

from dataclasses import asdict, replace
from functools import partial
from typing import Any

from ...figures.gantt import LEGEND, render_gantt
from ...report.html import (
    render_card,
    render_facts,
    render_figures,
    render_header,
    render_notes,
    render_page,
)
from ...units import format_bytes, format_count, format_percent, format_seconds
from ..bench_table import BenchTable, Column
from .lockstep_vs_pipelined import ClusterResult, VariantResult


def tabulate(result: ClusterResult) -> BenchTable[VariantResult]:
    """Return the table of the steps."""
    lock_step_s = result.lock_step.measured_s
    columns: list[Column[VariantResult]] = [
        Column("step", "step", value=lambda row: row.variant.name, align="left"),
        Column("plan", "plan", value=lambda row: row.variant.plan.name, align="left"),
        Column("predicted", "predicted_s", format_seconds, lambda row: row.variant.simulation.step_s),
        Column("measured", "measured_s", format_seconds),
        Column("predicted / measured", "ratio", "{:.2f}".format),
        Column("against lock-step", "", "{:.2f} x as fast".format, lambda row: lock_step_s / row.measured_s),
        Column("bytes sent", "bytes_sent", format_bytes, lambda row: row.variant.bytes_sent),
        Column("real compute", "real_fraction", format_percent),
        Column("without emulation", "plain_s", format_seconds),
        Column("", "micro_batches", value=lambda row: row.variant.micro_batches),
        Column("", "rounds"),
    ]
    return BenchTable(
        columns,
        result.rows,
        title=f"{result.experiment.spec.model} on an emulated cluster",
        notes=[*describe_promises(result), *describe_conditions(result)],
        facts=_collect_facts(result),
    )


def describe_conditions(result: ClusterResult) -> list[str]:
    """Say how the steps were measured."""
    experiment, link = result.experiment, result.link
    small, large = link.points[0], link.points[-1]
    lines = [
        f"{experiment.machines} network name spaces of this host at one switch. Each link carries "
        f"{format_count(8 * experiment.rate)}bit/s each way, of which {format_count(result.cluster.bandwidth)}B/s can "
        f"be tensors; a raw TCP connection reached {format_count(link.raw)}B/s. Tensors travel over encrypted TCP.",
        f"Measured before, between two machines: a small message takes {format_seconds(small[1])}, one of "
        f"{format_bytes(large[0])} {format_seconds(large[1])}. The latency and the cost of a message come from there; "
        "the bandwidth is the one asked for.",
    ]
    if result.flops is None:
        lines.append(f"Compute is real: {result.cores} cores, whose rates a probe measured before.")
    else:
        lines.append(
            f"Compute is emulated, since this host has {result.cores} cores: a machine does the real work of each "
            "segment and then sleeps until the segment has taken as long as the cost model says for "
            f"{format_count(result.flops)}FLOP/s. This tests the prediction of messages and of their order, not of "
            "operators. Real compute: the fraction of those seconds in which a core of this host was at work, for "
            "messages too."
        )
    steps = ", ".join(f"{count}: {format_seconds(seconds)}" for count, seconds in sorted(result.candidates.items()))
    lines.append(f"Predicted steps by number of micro-batches, of which the shortest was run: {steps}.")
    lines.append(f"Medians of {experiment.rounds} rounds of {experiment.steps} steps; each round times every row once.")
    return lines


def _collect_facts(result: ClusterResult) -> dict[str, Any]:
    return {
        "task": result.experiment.spec.model,
        "machines": result.experiment.machines,
        "rate": result.experiment.rate,
        "cores": result.cores,
        "emulated_flops": result.flops,
        "link": asdict(result.link),
        "latency_s": result.cluster.latency_s,
        "bandwidth": result.cluster.bandwidth,
        "predicted_by_micro_batches": {str(count): seconds for count, seconds in result.candidates.items()},
        "gain": result.gain,
        "promises": result.promises,
        "conditions": describe_conditions(result),
    }


def describe_promises(result: ClusterResult) -> list[str]:
    """Say of each promise whether it holds."""
    return [f"{'Holds' if holds else 'Does not hold'}: {promise}." for promise, holds in result.promises.items()]


def render_cluster_page(result: ClusterResult) -> str:
    """Return the results as one HTML file: verdict, key facts, steps, conditions and predicted timelines."""
    experiment, micro, lock_step = result.experiment, result.micro, result.lock_step
    compute = "real" if result.flops is None else f"{format_count(result.flops)}FLOP/s, emulated"
    facts = [
        ("Machines", str(experiment.machines), compute),
        ("Link", f"{format_count(8 * experiment.rate)}bit/s", "each way, each machine"),
        *(_render_fact(row) for row in (lock_step, micro)),
        ("Largest error", format_percent(result.error), "of the measured step"),
    ]
    table = replace(tabulate(result), notes=describe_promises(result))
    body = render_header(f"{experiment.spec.model} on an emulated cluster", _describe_verdict(result))
    body += render_facts(facts)
    body += render_card("Steps", "", table.to_html(best=lambda row: row is micro))
    body += render_card("How it was measured", "", render_notes(describe_conditions(result)))
    for row in result.rows[1:]:
        name = f"step-{row.variant.name.replace(' ', '-')}"
        gantt = render_figures(partial(render_gantt, row.variant.placement, name=name))
        body += render_card(f"Predicted step, {row.variant.name}", LEGEND, gantt)
    return render_page("cutset: emulated cluster", body)


def _render_fact(row: VariantResult) -> tuple[str, str, str]:
    predicted = format_seconds(row.variant.simulation.step_s)
    return row.variant.name.capitalize(), format_seconds(row.measured_s), f"{predicted} predicted"


def _describe_verdict(result: ClusterResult) -> str:
    return (
        f"A step with {result.micro.variant.name} is {result.gain:.2f} times as fast as in lock-step, "
        f"which is {result.one_machine.measured_s / result.lock_step.measured_s:.2f} times as fast as one machine."
    )
