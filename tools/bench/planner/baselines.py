"""`cutset bench plan`: our plans and the cuts that others make: one machine, slices, contiguous stages, METIS, tiles.

All are judged by the same simulator, on the same machines.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ....partition.cluster.machines import Cluster, uniform_cluster
from ....partition.dataflow.simulator import simulate
from ....partition.planner.plan import PlanningResult, ScoredPlan, choose_best
from ....partition.planner.planner import find_plan
from ...units import format_bytes, format_seconds
from ..bench_table import BenchTable, Column
from .models import PlanSubject

PEERS = {"slices": "slices", "stages": "stages", "even stages": "stages", "tiles": "tiles", "metis": "METIS RB"}
SAME = 1e-9  # relative, of two times that are one


@dataclass(frozen=True)
class PlanComparison:
    """Our plan of one net on at most `machines` machines, and the plans of its peers.

    Times are seconds of a step; peers: the best of each kind. all_used, bytes_forward, speed_up, balance: of the best
    plan that uses all machines; speed_up is over one machine if the network were infinitely fast, balance is the work
    of the busiest machine over the mean. known: the name of a good cut, and our bytes over its bytes.
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
    def worse_than(self) -> list[str]:
        """The peers that are faster than our plan."""
        others = {"one machine": self.one_machine_s, **self.peers}
        return [name for name, seconds in others.items() if seconds < self.step_s * (1 - SAME)]


def compare_plans(subjects: Iterable[PlanSubject]) -> Iterator[PlanComparison]:
    """Plan the nets one after the other."""
    for subject in subjects:
        yield _compare(subject)


def _compare(subject: PlanSubject) -> PlanComparison:
    graph, cluster = subject.graph(), uniform_cluster(subject.machines)
    began = time.perf_counter()
    result = find_plan(graph, cluster, fewer=True)
    seconds = time.perf_counter() - began
    full = _find_full_plan(result, cluster)
    flops = full.simulation.flops
    known = None if subject.known is None else subject.known(graph)
    return PlanComparison(
        subject.name,
        subject.machines,
        result.winner.cut.machines,
        result.winner.name,
        result.winner.simulation.step_s,
        result.one_machine.simulation.step_s,
        _find_peers(result, cluster),
        full.name,
        full.dataflow.bytes_forward,
        _compute_speed_up(result, full),
        max(flops) * len(flops) / sum(flops),
        None if known is None else (known[0], full.dataflow.bytes_forward / known[1]),
        seconds,
    )


def _find_full_plan(result: PlanningResult, cluster: Cluster) -> ScoredPlan:
    """Return the best plan that gives every machine some work."""
    full = [plan for plan in result.plans if len(plan.cluster) == len(cluster)]
    return choose_best(full) if full else result.winner


def _find_peers(result: PlanningResult, cluster: Cluster) -> dict[str, float]:
    """Return the best step of each peer on all machines."""
    steps: dict[str, float] = {}
    for plan in result.plans:
        plain = len(plan.cluster) == len(cluster) and not plan.searched
        peer = next((PEERS[kind] for kind in PEERS if plain and plan.name.startswith(kind)), None)
        if peer is not None and plan.fits:
            steps[peer] = min(steps.get(peer, math.inf), plan.simulation.step_s)
    return steps


def _compute_speed_up(result: PlanningResult, full: ScoredPlan) -> float:
    free = replace(full.cluster, bandwidth=math.inf, latency_s=0.0, links=())
    return result.one_machine.simulation.step_s / simulate(full.dataflow, free).step_s


def _get_peer(name: str) -> Callable[[PlanComparison], float | None]:
    return lambda row: row.peers.get(name)


def _describe_known(known: tuple[str, float]) -> str:
    return f"{known[1]:.3f} of {known[0]}"


PEER_NAMES = ("slices", "stages", "METIS RB", "tiles")


COLUMNS: tuple[Column[PlanComparison], ...] = (
    Column("net", "net", align="left"),
    Column("plan", "plan", align="left"),
    Column("at most", "machines"),
    Column("used", "used"),
    Column("step", "step_s", format_seconds),
    Column("one machine", "one_machine_s", format_seconds),
    *(Column(name, value=_get_peer(name), format=format_seconds) for name in PEER_NAMES),
    *(Column("", key) for key in ("peers", "all_used", "bytes_forward", "speed_up", "balance", "known", "plan_s")),
    Column("", "worse_than"),
)
FULL_COLUMNS: tuple[Column[PlanComparison], ...] = (
    Column("net", value=lambda row: row.net, align="left"),
    Column("plan on all machines", value=lambda row: row.all_used, align="left"),
    Column("machines", value=lambda row: row.machines),
    Column("speed-up", value=lambda row: row.speed_up, format="{:.2f}".format),
    Column("balance", value=lambda row: row.balance, format="{:.3f}".format),
    Column("bytes forward", value=lambda row: row.bytes_forward, format=format_bytes),
    Column("of a good cut", value=lambda row: row.known, format=_describe_known),
    Column("planned in", value=lambda row: row.plan_s, format="{:.1f} s".format),
)


def tabulate(rows: Sequence[PlanComparison]) -> tuple[BenchTable[PlanComparison], BenchTable[PlanComparison]]:
    """Return two tables: our plans and those of others, and what the plans that use all machines are like."""
    worse = [f"{row.net} (slower than {', '.join(row.worse_than)})" for row in rows if row.worse_than]
    verdict = f"Slower than a peer: {'; '.join(worse)}." if worse else "No plan is slower than a peer's."
    steps = BenchTable(
        COLUMNS, rows, notes=("Simulated seconds of a step, on machines of the default kind and gigabit Ethernet.", "")
    )
    full = BenchTable(
        FULL_COLUMNS, rows, notes=("Speed-up: over one machine if the network were infinitely fast.", verdict)
    )
    return steps, full
