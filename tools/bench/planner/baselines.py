"""Our plans beside the cuts that others would make: one machine, slices, contiguous stages, METIS, grid tiles.

All are judged by the same simulator, on the same machines.
"""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.text import Text

from ....partition.cluster.machines import Cluster, alike
from ....partition.planner.planner import Judged, Outcome, best_of, find
from ....partition.dataflow.simulator import simulate
from ...report.console import make_console, print_columns
from ...units import bytes_text, seconds_text
from .models import Subject

PEERS = {"slices": "slices", "stages": "stages", "even stages": "stages", "tiles": "tiles", "metis": "METIS RB"}
SAME = 1e-9  # relative, of two times that are one


@dataclass(frozen=True)
class PeerRow:
    """One net on at most so many machines.

    seconds of a step: ours, and the best of each peer's; bytes forward of ours. speed_up: of the plan that uses all
    machines, over one machine, when the network is infinitely fast. known: the bytes of ours over those of the cut
    named, which is known to be good. balance: the work of the busiest machine over the mean.
    """

    net: str
    machines: int
    used: int
    plan: str
    step_s: float
    one_machine_s: float
    peers: dict[str, float]
    all_used: str
    bytes_forward: int
    speed_up: float
    balance: float
    known: tuple[str, float] | None
    plan_s: float

    @property
    def worse(self) -> list[str]:
        """The peers that are faster than our plan."""
        others = {"one machine": self.one_machine_s, **self.peers}
        return [name for name, seconds in others.items() if seconds < self.step_s * (1 - SAME)]


def rows_of(subjects: Iterable[Subject]) -> Iterator[PeerRow]:
    """One row a subject, as they are planned."""
    for subject in subjects:
        yield _row(subject)


def _row(subject: Subject) -> PeerRow:
    graph, cluster = subject.graph(), alike(subject.machines)
    begun = time.perf_counter()
    outcome = find(graph, cluster, fewer=True)
    took = time.perf_counter() - begun
    full = _all_used(outcome, cluster)
    flops = full.simulation.flops
    known = None if subject.known is None else subject.known(graph)
    return PeerRow(
        subject.name,
        subject.machines,
        outcome.winner.flow.cut.machines,
        outcome.winner.name,
        outcome.winner.simulation.step_s,
        outcome.alone.simulation.step_s,
        _peers(outcome, cluster),
        full.name,
        full.flow.bytes_forward,
        _speed_up(outcome, full),
        max(flops) * len(flops) / sum(flops),
        None if known is None else (known[0], full.flow.bytes_forward / known[1]),
        took,
    )


def _all_used(outcome: Outcome, cluster: Cluster) -> Judged:
    """The best plan that gives every machine a share."""
    full = [judged for judged in outcome.judged if len(judged.cluster) == len(cluster)]
    return best_of(full) if full else outcome.winner


def _peers(outcome: Outcome, cluster: Cluster) -> dict[str, float]:
    """The best step of each peer on all machines."""
    out: dict[str, float] = {}
    for judged in outcome.judged:
        plain = len(judged.cluster) == len(cluster) and not judged.searched
        peer = next((PEERS[kind] for kind in PEERS if plain and judged.name.startswith(kind)), None)
        if peer is not None and judged.fits:
            out[peer] = min(out.get(peer, math.inf), judged.simulation.step_s)
    return out


def _speed_up(outcome: Outcome, full: Judged) -> float:
    free = replace(full.cluster, bandwidth=math.inf, latency_s=0.0, links=())
    return outcome.alone.simulation.step_s / simulate(full.flow, free).step_s


def as_data(row: PeerRow) -> dict[str, Any]:
    """A row for JSON."""
    return {**asdict(row), "worse_than": row.worse}


COLUMNS = ("net", "plan", "at most", "used", "step", "one machine", "slices", "stages", "METIS RB", "tiles")
FULL_COLUMNS = ("net", "plan of all", "machines", "speed-up", "balance", "bytes forward", "of known", "planned in")


def print_rows(rows: list[PeerRow]) -> None:
    """Two tables: our plan beside the others', and what the plan that uses all machines is like."""
    console = make_console()
    print_columns(console, COLUMNS, [_cells(row) for row in rows], left=2)
    console.print(Text("Seconds of a step, simulated, on machines of the default kind and gigabit Ethernet.\n"))
    print_columns(console, FULL_COLUMNS, [_full_cells(row) for row in rows], left=2)
    console.print(Text("Speed-up: over one machine, were the network infinitely fast."))
    worse = [f"{row.net} (slower than {', '.join(row.worse)})" for row in rows if row.worse]
    said = f"Slower than a peer: {'; '.join(worse)}" if worse else "No plan is slower than a peer's."
    console.print(Text(said, style="bold"))


def _cells(row: PeerRow) -> list[str]:
    peers = [seconds_text(row.peers[p]) if p in row.peers else "-" for p in ("slices", "stages", "METIS RB", "tiles")]
    times = [seconds_text(row.step_s), seconds_text(row.one_machine_s)]
    return [row.net, row.plan, str(row.machines), str(row.used), *times, *peers]


def _full_cells(row: PeerRow) -> list[str]:
    known = "-" if row.known is None else f"{row.known[1]:.3f} of {row.known[0]}"
    numbers = [str(row.machines), f"{row.speed_up:.2f}", f"{row.balance:.3f}", bytes_text(row.bytes_forward), known]
    return [row.net, row.all_used, *numbers, f"{row.plan_s:.1f} s"]
