"""`cutset bench plan --unlike`: plans for two fast and two slow machines with little memory, beside hand plans.

The machines compute at 4:4:1:1. All plans are judged by the same simulator; those that do not fit in memory are counted
and left out.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ....errors import Infeasible
from ....partition.cluster.machines import Cluster, Machine
from ....partition.dataflow.cut import one_machine_cut
from ....partition.ir.graph import Graph
from ....partition.planner.plan import PlanningResult
from ....partition.planner.plan_scorer import PlanScorer
from ....partition.planner.planner import find_plan
from ...units import NONE, format_seconds
from ..bench_table import BenchTable, Column
from .example_nets import list_example_nets
from .hand_plans import write_hand_plans

FAST_FLOPS, SLOW_FLOPS = 50e9, 12.5e9
AMPLE = 64 << 30
# Memory of each machine as a share of what one machine needs for the whole model.
ROOMS: Mapping[str, tuple[float, ...]] = {
    "ample": (),
    "by speed": (0.6, 0.6, 0.3, 0.3),
    "tight": (0.45, 0.45, 0.25, 0.25),
    "slow ones large": (0.35, 0.35, 0.8, 0.8),
}
MICRO_BATCHES = (1, 4)
SAME = 0.002  # relative difference of two steps that are taken for one, as of who owns which part of a parameter


@dataclass(frozen=True)
class UnlikeComparison:
    """Our plan of one net beside the best hand plan. Times are seconds of a step, None where no plan fits.

    fitting, hand_plans: how many hand plans fit in memory, and how many there are.
    """

    net: str
    memory: str
    micro_batches: int
    plan: str
    machines: int
    step_s: float | None
    hand_plan: str
    hand_step_s: float | None
    fitting: int
    hand_plans: int
    plan_s: float

    @property
    def ratio(self) -> float | None:
        """Our step over that of the best hand plan; None where there is none."""
        if self.hand_step_s is None:
            return None
        return math.inf if self.step_s is None else self.step_s / self.hand_step_s

    @property
    def behind(self) -> bool:
        """Whether a hand plan is plainly faster than ours, or fits where ours does not."""
        return self.ratio is not None and self.ratio > 1 + SAME


def list_cases() -> Iterator[tuple[str, Graph, str, int]]:
    """Yield every net with every memory and number of micro-batches."""
    for net, make in list_example_nets().items():
        graph = make()
        for micro_batches in MICRO_BATCHES:
            for memory in ROOMS:
                yield net, graph, memory, micro_batches


def compare_unlike(cases: Iterable[tuple[str, Graph, str, int]]) -> Iterator[UnlikeComparison]:
    """Plan the cases one after the other, and simulate the hand plans of each."""
    for net, graph, memory, micro_batches in cases:
        scorer = PlanScorer(graph, micro_batches)
        cluster = limit_memory(make_unlike_machines(), scorer, graph, ROOMS[memory])
        began = time.perf_counter()
        result = _find_plan(graph, cluster, micro_batches)
        seconds = time.perf_counter() - began
        hand = [
            (p.name, scorer.simulate(p.name, p.cut, cluster.select(p.machines)))
            for p in write_hand_plans(graph, cluster)
        ]
        fitting = sorted((plan.simulation.step_s, name) for name, plan in hand if plan.fits)
        best_s, best = fitting[0] if fitting else (None, NONE)
        yield UnlikeComparison(
            net,
            memory,
            micro_batches,
            NONE if result is None else result.winner.name,
            0 if result is None else len(result.winner.cluster),
            None if result is None else result.winner.simulation.step_s,
            best,
            best_s,
            len(fitting),
            len(hand),
            seconds,
        )


def make_unlike_machines() -> Cluster:
    """Return machines of speeds 4:4:1:1 on gigabit Ethernet."""
    speeds = (FAST_FLOPS, FAST_FLOPS, SLOW_FLOPS, SLOW_FLOPS)
    return Cluster(tuple(Machine(f"machine {n}", speed, AMPLE) for n, speed in enumerate(speeds)))


def limit_memory(cluster: Cluster, scorer: PlanScorer, graph: Graph, shares: Sequence[float]) -> Cluster:
    """Return the cluster with these shares of the memory that its first machine needs for the whole model."""
    if not shares:
        return cluster
    whole = scorer.simulate("one machine", one_machine_cut(graph), cluster.select([0]))
    (needed,) = whole.simulation.memory_bytes
    pairs = zip(cluster.machines, shares, strict=True)
    return replace(cluster, machines=tuple(replace(m, memory_bytes=int(share * needed)) for m, share in pairs))


def _find_plan(graph: Graph, cluster: Cluster, micro_batches: int) -> PlanningResult | None:
    try:
        return find_plan(graph, cluster, fewer=True, micro_batches=micro_batches)
    except Infeasible:
        return None


COLUMNS: tuple[Column[UnlikeComparison], ...] = (
    Column("net", "net", align="left"),
    Column("memory", "memory", align="left"),
    Column("micro-batches", "micro_batches"),
    Column("plan", "plan", align="left"),
    Column("used", "machines"),
    Column("step", "step_s", format_seconds),
    Column("best hand plan", "hand_plan", align="left"),
    Column("step", "hand_step_s", format_seconds),
    Column("of its", "ratio", "{:.3f}".format),
    Column("fit", value=lambda row: f"{row.fitting} of {row.hand_plans}"),
    Column("planned in", "plan_s", "{:.1f} s".format),
    *(Column("", key) for key in ("fitting", "hand_plans", "behind")),
)


def tabulate(rows: Sequence[UnlikeComparison]) -> BenchTable[UnlikeComparison]:
    """Return the results as a table."""
    behind = [f"{row.net}, memory {row.memory}, {row.micro_batches} micro-batches" for row in rows if row.behind]
    verdict = (
        f"Behind a hand plan: {'; '.join(behind)}."
        if behind
        else f"No plan is behind a hand plan by more than {SAME:.1%}."
    )
    alone = sum(row.step_s is not None and row.hand_step_s is None for row in rows)
    notes = [
        "Simulated seconds of a step on machines of speeds 4:4:1:1 and gigabit Ethernet. fit: of the hand plans.",
        f"{verdict} Where no hand plan fits, {alone} of ours do.",
    ]
    return BenchTable(COLUMNS, rows, title="Unlike machines", notes=notes)
