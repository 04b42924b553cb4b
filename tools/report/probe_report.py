"""What `cutset probe` prints: tables for people, plain data for programs."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from ...partition.operators.sharding.cost_class import RANDOM
from ..measured.class_names import CLASS_NAMES
from ..probe.fit_constants import ChainSample, OperatorSample
from ..probe.measure_machine import ProbeResult
from ..units import format_bytes, format_count, format_seconds
from .console import make_console, print_columns


def print_probed(probed: ProbeResult, *, console: Console | None = None) -> None:
    """Print what each class of operators runs at, and what the runtime and the network cost."""
    console = console or make_console()
    machine = probed.cluster.machines[0]
    each = f"each of {probed.workers} workers has" if probed.workers > 1 else "one worker has"
    threads = f"{probed.threads} thread" + ("s" if probed.threads > 1 else "")
    head = f"{probed.cores} cores; {each} {threads} and {format_bytes(machine.memory_bytes)} of memory"
    console.print(Text(head, style="bold"))
    if probed.workers > probed.cores:
        console.print(Text("note: more workers than cores: those that compute at once share them"))
    if probed.disturbed:
        console.print(Text(describe_disturbance(probed)))
    console.print()
    columns = ["operators", "", "smallest", "largest", "forward", "backward", "start"]
    if any(sample.single_s for sample in probed.samples):
        columns.append("gain of threads")
    print_columns(console, columns, _make_rows(probed, len(columns)), left=2)
    for name, text in _list_constants(probed):
        console.print(Text(f"{name:<44}{text}"))


def describe_disturbance(probed: ProbeResult) -> str:
    """Say that other work disturbed the measurement."""
    return f"note: the machine was busy (load {probed.busy:.1f}), so these times are too long; probe it when idle"


def _make_rows(probed: ProbeResult, width: int) -> list[list[str]]:
    rows = []
    for kind in dict.fromkeys(sample.kind for sample in probed.samples):
        samples = [sample for sample in probed.samples if sample.kind == kind]
        rows.append([kind, CLASS_NAMES[kind], *_format_cells(samples, probed)][:width])
    return rows


def _format_cells(samples: Sequence[OperatorSample], probed: ProbeResult) -> list[str]:
    """Times of the smallest and the largest size, the rates both ways, the start cost, the gain gain of threads."""
    machine, large = probed.cluster.machines[0], samples[-1]
    rate = machine.rate(large.kind)
    bound = large.kind not in machine.rates
    speeds = [f"{format_count(speed)}FLOP/s" for speed in (rate.flops_per_s, rate.backward_flops_per_s)]
    if bound:
        speeds = [f"{format_bytes(machine.memory_bandwidth)}/s"] * 2
    if not large.work.flops:
        speeds = ["free", "free"]
    gain = f"{large.single_s / large.forward_s:.1f} x" if large.single_s else ""
    return [
        format_seconds(samples[0].forward_s),
        format_seconds(large.forward_s),
        *speeds,
        format_seconds(rate.start_s),
        gain,
    ]


def _list_constants(probed: ProbeResult) -> list[tuple[str, str]]:
    machine, cluster = probed.cluster.machines[0], probed.cluster
    return [
        ("memory, operators that hardly compute", f"{format_bytes(machine.memory_bandwidth)}/s"),
        ("memory, copies of 64 MiB", f"{format_bytes(probed.copy)}/s"),
        ("random numbers, of dropout masks", f"{format_count(machine.rate(RANDOM).flops_per_s)}/s"),
        ("starting an operator, and a gradient of it", f"{_format_pair(machine.operator_s, machine.gradient_s)}"),
        ("starting a segment, forward and backward", f"{_format_pair(machine.segment_s, machine.segment_back_s)}"),
        ("a message, at either end", format_seconds(machine.message_s)),
        ("the rest of a step", format_seconds(machine.step_s)),
        ("loopback with encryption, latency", format_seconds(cluster.latency_s)),
        ("loopback with encryption, bandwidth", f"{format_bytes(cluster.bandwidth)}/s"),
        *((_describe_chain(chain), _format_per_message(chain)) for chain in probed.chains[:-1]),
        ("  back and forth with several operators between", _format_per_message(probed.chains[-1])),
        ("starts in a step that waits for messages", f"{machine.cold:.0%} longer"),
        *[("operators while all cores compute", f"{shared.contention - 1:.0%} longer") for shared in cluster.shared],
        ("memory of a process without a model", format_bytes(machine.process_bytes)),
    ]


def _format_pair(first: float, second: float) -> str:
    return f"{format_seconds(first)}, {format_seconds(second)}"


def _describe_chain(chain: ChainSample) -> str:
    return f"  {'both ways at once' if chain.joins else 'back and forth'} with {format_bytes(chain.bytes)}"


def _format_per_message(chain: ChainSample) -> str:
    return f"{format_seconds((chain.together_s - chain.alone_s) / chain.messages)} a message"
