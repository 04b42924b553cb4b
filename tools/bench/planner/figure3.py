"""Speed-up against machines for DistBelief's four nets: its figure 3 (Dean et al., NIPS 2012) by cutset's own plans.

The nets are bundled (models/speech_net.py, models/image_nets.py). For each number of machines the planner's own plan
is simulated, without micro-batches, on machines like those of the paper, some of which are slow in a step: the
slowdown of each machine is drawn anew for each step from a lognormal distribution, and the mean of the steps counts.
What the paper says of its machines is little (at most 20 cores of each are used); the rest is assumed, see `Assumed`,
so the shapes of the curves are to be compared, not their values.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ....partition.cluster.machines import Cluster, Machine
from ....partition.cluster.cost_model import Costs
from ....errors import UsageError
from ....partition.dataflow.dataflow import Flow
from ....partition.ir.graph import Graph
from ....partition.planner.planner import find
from ....partition.dataflow.simulator import simulate
from ...task.load_task import TaskSpec
from ...task.plan_task import captured
from ...units import bytes_text, count_text, seconds_text

NETS = ("speech", "local_80m", "local_330m", "local_1700m")
COUNTS = (1, 2, 4, 8, 16, 32, 64, 81, 128)
MANY = 64  # machines; where there are fewer, each step says less of slow machines, so there are more steps


@dataclass(frozen=True)
class Assumed:
    """The machines that are assumed, in seconds, bytes and FLOP/s. The values are of 2012: gigabit Ethernet, cores
    that together sustain 60 GFLOP/s, and remote calls that cost either end 0.7 ms.

    message_s: what either end spends on a message. straggling: standard deviation of the logarithm of a machine's
    slowdown in a step; the median slowdown is 1. draws: steps that the mean is of, more with fewer than 64 machines.
    """

    flops_per_s: float = 60e9
    memory_bandwidth: float = 20e9
    memory_bytes: int = 64 << 30
    bandwidth: float = 110e6
    latency_s: float = 2e-4
    message_s: float = 7e-4
    straggling: float = 0.5
    draws: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("flops_per_s", "memory_bandwidth", "memory_bytes", "bandwidth", "draws"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError("E240", f"{name} is {getattr(self, name)}", fix="give a number above 0")
        for name in ("latency_s", "message_s", "straggling"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError("E240", f"{name} is {getattr(self, name)}", fix="give a number of at least 0")

    def cluster(self, count: int) -> Cluster:
        """So many of the machines."""
        machines = tuple(
            Machine(
                f"machine {i}",
                self.flops_per_s,
                self.memory_bytes,
                memory_bandwidth=self.memory_bandwidth,
                message_s=self.message_s,
            )
            for i in range(count)
        )
        return Cluster(machines, self.bandwidth, self.latency_s)

    def slowdowns(self, count: int) -> list[list[float]]:
        """Steps x machines. The same machine is as slow in the same step whatever the number of machines."""
        steps = self.draws * max(1, MANY // count)
        drawn = [np.random.default_rng([self.seed, step]).standard_normal(count) for step in range(steps)]
        return [[float(factor) for factor in np.exp(self.straggling * row)] for row in drawn]

    @property
    def mean_slowdown(self) -> float:
        """Of one machine."""
        return math.exp(self.straggling**2 / 2)


@dataclass(frozen=True)
class Point:
    """One net on so many machines. quiet_s: where no machine is slow. least_share: as in placement.Score."""

    task: str
    machines: int
    step_s: float
    quiet_s: float
    speedup: float
    plan: str
    bytes_forward: int
    least_share: float


@dataclass(frozen=True)
class Stated:
    """A speed-up that the paper's text gives (section 5, on figure 3); at_least: it says "more than"."""

    task: str
    machines: int
    speedup: float
    at_least: bool


# The text alone: the paper prints the curves as a picture without numbers, and nothing is read off it here.
STATED = (Stated("speech", 8, 2.2, at_least=False), Stated("local_1700m", 81, 12.0, at_least=True))


@dataclass(frozen=True)
class Figure:
    """All points, in the order of nets and machines, and what they were simulated with."""

    assumed: Assumed
    batch: int
    points: tuple[Point, ...]
    seconds: float

    def of(self, task: str) -> list[Point]:
        """The points of one net."""
        return [point for point in self.points if point.task == task]

    @property
    def assumptions(self) -> list[str]:
        """What was simulated, in lines that fit below the picture."""
        assumed = self.assumed
        return [
            f"Machines: {count_text(assumed.flops_per_s)}FLOP/s, {bytes_text(assumed.memory_bytes)} of memory, "
            f"{count_text(assumed.memory_bandwidth)}B/s to it.",
            f"Network: {count_text(assumed.bandwidth)}B/s each way, latency {seconds_text(assumed.latency_s)}, "
            f"{seconds_text(assumed.message_s)} a message at either end.",
            f"Steps: batches of {self.batch}, no micro-batches; the mean of {assumed.draws} steps or more.",
            f"Slowdown of a machine in a step: lognormal, sigma {assumed.straggling:g}, seed {assumed.seed}.",
        ]

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "source": "Dean et al., Large Scale Distributed Deep Networks, NIPS 2012, figure 3",
            "assumed": _plain(self.assumed) | {"batch": self.batch},
            "points": [_plain(point) for point in self.points],
            "stated": [_plain(stated) for stated in STATED],
            "seconds": self.seconds,
        }


def _plain(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def figure3(
    assumed: Assumed,
    *,
    nets: Sequence[str] = NETS,
    counts: Sequence[int] = COUNTS,
    batch: int | None = None,
    only: str = "",
    tell: Callable[[Point], None] = lambda point: None,
) -> Figure:
    """Plan and simulate every net on every number of machines; `tell` hears of each point when it is there.

    nets: names of bundled tasks. batch: samples of a step, by default the tasks' own. only: the kind of plans to choose
    among, as of planner.plan.
    """
    began = time.perf_counter()
    points: list[Point] = []
    samples = 0
    for net in nets:
        ready = captured(TaskSpec(f"cutset.models:{net}", batch=batch))
        samples = ready.batch
        for point in curve(net, ready.train, counts, assumed, only=only):
            points.append(point)
            tell(point)
    return Figure(assumed, samples, tuple(points), time.perf_counter() - began)


def curve(task: str, graph: Graph, counts: Sequence[int], assumed: Assumed, *, only: str = "") -> Iterator[Point]:
    """The points of one net. One machine waits for nobody, so its mean step is that of its mean slowdown."""
    costs = Costs(graph.tensors)
    alone = find(graph, assumed.cluster(1)).winner
    single_s = simulate(alone.flow, assumed.cluster(1), costs=costs, slowdown=[assumed.mean_slowdown]).step_s
    for count in counts:
        cluster = assumed.cluster(count)
        winner = alone if count == 1 else find(graph, cluster, seed=assumed.seed, only=only).winner
        step_s = single_s if count == 1 else _mean_step_s(winner.flow, cluster, assumed, costs)
        quiet_s, sent = winner.simulation.step_s, winner.flow.bytes_forward
        yield Point(task, count, step_s, quiet_s, single_s / step_s, winner.name, sent, winner.least_share)


def _mean_step_s(flow: Flow, cluster: Cluster, assumed: Assumed, costs: Costs) -> float:
    steps = [
        simulate(flow, cluster, costs=costs, slowdown=slowdown).step_s for slowdown in assumed.slowdowns(len(cluster))
    ]
    return sum(steps) / len(steps)
