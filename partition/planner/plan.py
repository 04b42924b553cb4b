"""A plan as data: what is asked for, the candidates that were tried, and how plans are ranked.

A `PlanningProblem` is a graph, a cluster and what must hold. A `Candidate` is a named cut for it, `Rejected` one that
could not be made. A `ScoredPlan` is a candidate that was lowered and simulated. A `PlanningResult` holds all of these
and the winner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from ..cluster.machines import Cluster
from ..dataflow.cut import Cut
from ..dataflow.dataflow import Dataflow
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

SEARCH_PREFIXES = ("mesh", "stages x mesh", "wavefront", "metis levels", "kahypar")
LOCAL_SEARCH_SUFFIX = ", local search"

Rank = tuple[bool, bool, float, float, float, int, str]


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
class ScoredPlan:
    """A cut and its predicted cost.

    cluster: the machines that it uses. min_load: work of the least loaded machine, as a fraction of its even share.
    """

    name: str
    dataflow: Dataflow
    cluster: Cluster
    simulation: Simulation
    min_load: float

    @property
    def searched(self) -> bool:
        """Whether a search over layouts or blocks found it.

        One machine, slices, tiles, stages and plain METIS are regular cuts, which other systems make as well.
        """
        return self.name.startswith(SEARCH_PREFIXES) or self.name.endswith(LOCAL_SEARCH_SUFFIX)

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

    def rank(self, objective: str, *, all_used: bool) -> Rank:
        """The sort key of a plan: the best plan has the smallest, and of equal plans that with fewer machines.

        all_used: whether nearly idle machines count against the plan.
        """
        seconds, sent = self.simulation.step_s, float(self.dataflow.bytes_forward)
        memory = float(max(self.simulation.memory_bytes))
        order = {TIME: (seconds, sent, memory), BYTES: (sent, seconds, memory), MEMORY: (memory, seconds, sent)}
        idle = all_used and self.min_load < FAIR_SHARE
        return (not self.fits, idle, *order[objective], len(self.cluster), self.name)


@dataclass(frozen=True)
class PlanningResult:
    """What planning found.

    one_machine: the model uncut on the fastest machine. plans: all that were scored. rejected: all that were not made.
    shortage: why machines had to be left out, in words; "" where they had not. least_s: seconds that no plan is below
    (lower_bound.py).
    """

    problem: PlanningProblem
    objective: str
    winner: ScoredPlan
    one_machine: ScoredPlan
    plans: tuple[ScoredPlan, ...]
    rejected: tuple[Rejected, ...]
    shortage: str = ""
    least_s: float = 0.0
