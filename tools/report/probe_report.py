"""What `cutset probe` says: in words and tables for people, as plain data for programs."""

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from ...partition.cluster.cost_model import RANDOM
from .console import make_console, print_columns
from ..probe.measure_machine import Probed
from ..probe.fit_constants import ChainSample, Sample
from ..units import bytes_text, count_text, seconds_text

EXPLAINED = {
    "contraction": "matrix products, linear layers",
    "convolution": "convolutions",
    "local": "locally connected layers",
    "attention": "attention",
    "pooling": "pooling",
    "normalisation": "layer norm, batch norm, softmax",
    "loss": "losses",
    "function": "gelu, tanh, exp and the like",
    "elementwise": "relu, sums of tensors and the like",
    "view": "views: flatten, transpose",
}


def print_probed(probed: Probed, *, console: Console | None = None) -> None:
    """Print what each class of operators runs at, and what the runtime and the network cost."""
    console = console or make_console()
    machine = probed.cluster.machines[0]
    each = f"each of {probed.workers} workers has" if probed.workers > 1 else "one worker has"
    threads = f"{probed.threads} thread" + ("s" if probed.threads > 1 else "")
    head = f"{probed.cores} cores; {each} {threads} and {bytes_text(machine.memory_bytes)} of memory"
    console.print(Text(head, style="bold"))
    if probed.workers > probed.cores:
        console.print(Text("note: more workers than cores: they take turns, and everything is counted as slower"))
    if probed.disturbed:
        console.print(Text(disturbance(probed)))
    console.print()
    columns = ["operators", "", "smallest", "largest", "forward", "backward", "start"]
    if any(sample.single_s for sample in probed.samples):
        columns.append("of more threads")
    print_columns(console, columns, _rows(probed, len(columns)), left=2)
    for name, text in _constants(probed):
        console.print(Text(f"{name:<44}{text}"))


def disturbance(probed: Probed) -> str:
    """What to say where other work was in the way."""
    return f"note: the machine was busy (load {probed.busy:.1f}), so these are too slow: probe again when it is quiet"


def as_plain(probed: Probed) -> dict[str, Any]:
    """All that was measured, as numbers and strings; seconds, bytes, FLOP/s."""
    plain: dict[str, Any] = msgspec.to_builtins(probed)
    return plain


def _rows(probed: Probed, width: int) -> list[list[str]]:
    rows = []
    for kind in dict.fromkeys(sample.kind for sample in probed.samples):
        mine = [sample for sample in probed.samples if sample.kind == kind]
        rows.append([kind, EXPLAINED[kind], *_cells(mine, probed)][:width])
    return rows


def _cells(mine: Sequence[Sample], probed: Probed) -> list[str]:
    """Times of the smallest and the largest size, the rates both ways, the start cost, the gain of more threads."""
    machine, large = probed.cluster.machines[0], mine[-1]
    rate = machine.rate(large.kind)
    bound = large.kind not in machine.rates
    speeds = [f"{count_text(speed)}FLOP/s" for speed in (rate.flops_per_s, rate.back_flops_per_s)]
    if bound:
        speeds = [f"{bytes_text(machine.memory_bandwidth)}/s"] * 2
    if not large.work.flops:
        speeds = ["free", "free"]
    gain = f"{large.single_s / large.forward_s:.1f} x" if large.single_s else ""
    return [seconds_text(mine[0].forward_s), seconds_text(large.forward_s), *speeds, seconds_text(rate.start_s), gain]


def _constants(probed: Probed) -> list[tuple[str, str]]:
    machine, cluster = probed.cluster.machines[0], probed.cluster
    return [
        ("memory, operators that hardly compute", f"{bytes_text(machine.memory_bandwidth)}/s"),
        ("memory, copies of 64 MiB", f"{bytes_text(probed.copy)}/s"),
        ("random numbers, of dropout masks", f"{count_text(machine.rate(RANDOM).flops_per_s)}/s"),
        ("starting an operator, and a gradient of it", f"{_both(machine.operator_s, machine.gradient_s)}"),
        ("starting a segment, forward and backward", f"{_both(machine.segment_s, machine.segment_back_s)}"),
        ("a message, at either end", seconds_text(machine.message_s)),
        ("the rest of a step", seconds_text(machine.step_s)),
        ("loopback with encryption, latency", seconds_text(cluster.latency_s)),
        ("loopback with encryption, bandwidth", f"{bytes_text(cluster.bandwidth)}/s"),
        *((_way(chain), _per_message(chain)) for chain in probed.chains[:-1]),
        ("  to and fro with several operators between", _per_message(probed.chains[-1])),
        ("starts in a step that waits for others", f"{machine.cold:.0%} longer"),
    ]


def _both(first: float, second: float) -> str:
    return f"{seconds_text(first)}, {seconds_text(second)}"


def _way(chain: ChainSample) -> str:
    return f"  {'both ways at once' if chain.joins else 'to and fro'} with {bytes_text(chain.bytes)}"


def _per_message(chain: ChainSample) -> str:
    return f"{seconds_text((chain.together_s - chain.alone_s) / chain.messages)} a message"
