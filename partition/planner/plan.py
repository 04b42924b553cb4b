"""A plan as data: what is asked for, the candidates that were tried, and how plans are ranked.

A `PlanningProblem` is a graph, a cluster and what must hold. A `Candidate` is a named cut for it, `Rejected` one that
could not be made. A `ScoredPlan` is a candidate that was lowered and simulated. A `PlanningResult` holds all of these
and the winner.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

from ...errors import Infeasible
from ..cluster.machines import Cluster
from ..dataflow.cut import Cut, PlacedBox
from ..dataflow.dataflow import Dataflow
from ..dataflow.lowering import lower_cut
from ..dataflow.simulator import Simulation
from ..ir.graph import Graph

TIME = "time"
BYTES = "bytes"
MEMORY = "memory"
OBJECTIVES = (TIME, BYTES, MEMORY)

# Whoever asks for k machines wants all of them used. Where the network is so slow that the fastest plan would leave a
# machine idle, each machine still gets at least this fraction of its even share of the work; the verdict then says
# that one machine would be faster.
FAIR_SHARE = 0.25

# The simulator is less exact than this, so of plans as close to the fastest one that sends much fewer bytes is better.
TIME_TOLERANCE = 1.03
WORTH_OF_BYTES = 0.1

SEARCH_PREFIXES = ("mesh", "stages x mesh", "wavefront", "metis levels", "kahypar")
LOCAL_SEARCH_SUFFIX = ", local search"
EVEN_OWNERS_SUFFIX = ", even owners"
DEFERRED_SUFFIX = ", waits filled"

Rank = tuple[bool, bool, float, float, float, int, str]

Boxes = Mapping[str, Sequence[PlacedBox]]
# Boxes, folds and, where it is not 0, the depth of a wave; or why there is no cut.
CutOrReason = tuple[Boxes, Boxes] | tuple[Boxes, Boxes, int] | str
CutMaker = Callable[[], CutOrReason]


@dataclass(frozen=True)
class PlanningProblem:
    """What is to be cut, and over which machines.

    pins: operator -> the machine that must run it whole. micro_batches: how many of the graph's batches make a step.
    """

    graph: Graph
    cluster: Cluster
    seed: int = 0
    micro_batches: int = 1
    pins: Mapping[str, int] = field(default_factory=dict)

    @property
    def machines(self) -> range:
        """Numbers of the machines."""
        return range(len(self.cluster))


class PlanningOptions(TypedDict, total=False):
    """Options of a plan.

    seed: the random seed. candidates: consider only candidates whose name begins so ("metis"). fewer: some machines
    may be left out, down to one; otherwise every machine gets a share. objective: what to minimise, "time", "bytes" or
    "memory" (peak memory per machine). pins: "GLOB=MACHINE" (see pins.py). micro_batches: how many of the graph's
    batches make a step.
    """

    seed: int
    candidates: str
    fewer: bool
    objective: str
    pins: Sequence[str]
    micro_batches: int


@dataclass(frozen=True)
class Candidate:
    """A named cut of a graph over all machines of a cluster."""

    name: str
    cut: Cut


@dataclass(frozen=True)
class Rejected:
    """A candidate that could not be made, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Figures:
    """What plans are ranked by. memory_bytes: of the machine that needs most. idle: a machine has next to no work."""

    step_s: float
    bytes_forward: float
    memory_bytes: float
    fits: bool
    idle: bool

    def extrapolate(self, less: "Figures", more: "Figures", factor: float) -> "Figures":
        """Add `factor` times what the figures grow by from `less` to `more`."""
        return Figures(
            self.step_s + factor * (more.step_s - less.step_s),
            self.bytes_forward + factor * (more.bytes_forward - less.bytes_forward),
            self.memory_bytes + factor * (more.memory_bytes - less.memory_bytes),
            self.fits and more.fits,
            self.idle and more.idle,
        )

    def scale(self, factor: float) -> "Figures":
        """Return figures as many times as large."""
        return Figures(
            self.step_s * factor, self.bytes_forward * factor, self.memory_bytes * factor, self.fits, self.idle
        )

    def rank(self, objective: str, *, all_used: bool, machines: int, name: str) -> Rank:
        """The sort key: the best plan has the smallest, and of equal plans that with fewer machines.

        all_used: whether nearly idle machines count against the plan.
        """
        seconds, sent, memory = self.step_s, self.bytes_forward, self.memory_bytes
        order = {TIME: (seconds, sent, memory), BYTES: (sent, seconds, memory), MEMORY: (memory, seconds, sent)}
        return (not self.fits, all_used and self.idle, *order[objective], machines, name)


@dataclass(frozen=True)
class ScoredPlan:
    """A cut and its predicted cost.

    cluster: the machines that it uses. min_load: work of the least loaded machine, as a fraction of its even share.
    lowered: the dataflow, None where it was dropped to save memory, and the simulation's timeline with it.
    """

    name: str
    graph: Graph
    cut: Cut
    cluster: Cluster
    simulation: Simulation
    bytes_forward: int
    min_load: float
    lowered: Dataflow | None = field(repr=False, compare=False)

    @property
    def dataflow(self) -> Dataflow:
        """What every machine does in a step; lowered anew where it was dropped."""
        return lower_cut(self.graph, self.cut) if self.lowered is None else self.lowered

    def without_details(self) -> "ScoredPlan":
        """Return the plan without its dataflow and timeline, the large parts of it."""
        if self.lowered is None:
            return self
        return replace(self, lowered=None, simulation=replace(self.simulation, timeline=()))

    @property
    def searched(self) -> bool:
        """Whether a search over layouts or blocks found it.

        One machine, slices, tiles, stages and plain METIS are regular cuts, which other systems make as well.
        """
        return self.name.startswith(SEARCH_PREFIXES) or LOCAL_SEARCH_SUFFIX in self.name or DEFERRED_SUFFIX in self.name

    @property
    def fits(self) -> bool:
        """Whether every machine has enough memory."""
        return not self.machines_over_memory

    @property
    def machines_over_memory(self) -> list[int]:
        """Machines with too little memory."""
        pairs = zip(self.simulation.memory_bytes, self.cluster.machines, strict=True)
        return [number for number, (needed, machine) in enumerate(pairs) if needed > machine.memory_bytes]

    @property
    def memory_pressure(self) -> float:
        """The largest ratio of needed to available memory of any machine."""
        pairs = zip(self.simulation.memory_bytes, self.cluster.machines, strict=True)
        return max(needed / machine.memory_bytes for needed, machine in pairs)

    @property
    def memory_excess(self) -> float:
        """What the machines need beyond their memory, as fractions of it, added up; 0 where all have enough."""
        pairs = zip(self.simulation.memory_bytes, self.cluster.machines, strict=True)
        return sum(max(0.0, needed / machine.memory_bytes - 1.0) for needed, machine in pairs)

    @property
    def figures(self) -> Figures:
        """What it is ranked by."""
        simulation = self.simulation
        sent, memory = float(self.bytes_forward), float(max(simulation.memory_bytes))
        return Figures(simulation.step_s, sent, memory, self.fits, self.min_load < FAIR_SHARE)

    def rank(self, objective: str, *, all_used: bool) -> Rank:
        """The sort key of a plan, see `Figures.rank`."""
        return self.figures.rank(objective, all_used=all_used, machines=len(self.cluster), name=self.name)


@dataclass(frozen=True)
class PlanningResult:
    """What planning found.

    one_machine: the model uncut on the fastest machine that holds it, on the largest where none does. plans: all that
    were scored. rejected: all that were not made. shortage: why machines had to be left out, in words; "" where they
    had not. least_s: seconds that no plan is below (lower_bound.py). fewer: a faster plan that leaves machines out or
    idle, where one was looked for and found.
    """

    problem: PlanningProblem
    objective: str
    winner: ScoredPlan
    one_machine: ScoredPlan
    plans: tuple[ScoredPlan, ...]
    rejected: tuple[Rejected, ...]
    shortage: str = ""
    least_s: float = 0.0
    fewer: ScoredPlan | None = None


def choose_best(plans: Sequence[ScoredPlan], objective: str = TIME, *, all_used: bool = True) -> ScoredPlan:
    """The best plan. For time: of the plans within TIME_TOLERANCE of the fastest, one that sends much fewer bytes.

    A percent of the bytes counts as WORTH_OF_BYTES percent of the seconds.
    A plan that is slower than a regular cut (see `ScoredPlan.searched`) is never taken.

    all_used: see `ScoredPlan.rank`.
    """
    best = min(plans, key=lambda plan: plan.rank(objective, all_used=all_used))
    if objective != TIME:
        return best
    validity = best.rank(objective, all_used=all_used)[:2]
    valid = [plan for plan in plans if plan.rank(objective, all_used=all_used)[:2] == validity]
    regular = (p.simulation.step_s for p in valid if not p.searched)
    limit = min(best.simulation.step_s * TIME_TOLERANCE, min(regular, default=math.inf))
    close = [plan for plan in valid if plan.simulation.step_s <= limit]

    def weigh(plan: ScoredPlan) -> tuple[float, float, float, int, str]:
        step_s, sent = plan.simulation.step_s, float(plan.bytes_forward)
        return step_s * sent**WORTH_OF_BYTES, sent, step_s, len(plan.cluster), plan.name

    return min(close, key=weigh)


def describe_shortage(nearest: ScoredPlan) -> Infeasible:
    """Return the error that says which machines of the nearest plan have too little memory, and for what."""
    needs = [
        f"{nearest.cluster.machines[n].name} has {nearest.cluster.machines[n].memory_bytes:,} bytes and needs "
        f"{nearest.simulation.memory_bytes[n]:,}{_largest_piece(nearest, n)}"
        for n in nearest.machines_over_memory
    ]
    return Infeasible(
        "E404",
        f"no plan fits in memory; the nearest, {nearest.name}: {'; '.join(needs)}",
        fix="use more machines, machines with more memory, or a smaller --batch",
    )


def _largest_piece(nearest: ScoredPlan, machine: int) -> str:
    """The largest piece that a machine would have to hold, in words."""
    dataflow = nearest.dataflow
    held = [(dataflow.piece_bytes(p.index), p) for p in dataflow.pieces if p.machine == machine]
    if not held:
        return ""
    size, piece = max(held, key=lambda item: (item[0], -item[1].index))
    return f" (the largest block: {piece.tensor}, {size:,} bytes)"
