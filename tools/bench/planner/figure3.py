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

from ....errors import UsageError
from ....partition.cluster.cost_model import CostModel
from ....partition.cluster.machines import Cluster, Machine
from ....partition.dataflow.dataflow import Dataflow
from ....partition.dataflow.simulator import simulate
from ....partition.ir.graph import Graph
from ....partition.planner.planner import find_plan
from ...task.capture_task import capture_task
from ...task.load_task import TaskSpec
from ...units import format_bytes, format_count, format_seconds
from ..bench_table import BenchTable, Column

NETS = ("speech", "local_80m", "local_330m", "local_1700m")
COUNTS = (1, 2, 4, 8, 16, 32, 64, 81, 128)
MANY = 64  # machines; where there are fewer, each step says less of slow machines, so there are more steps


@dataclass(frozen=True)
class AssumedMachines:
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
        """Return a cluster of so many of the machines."""
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
        """Return [step][machine]: a machine is as slow in a step whatever the number of machines."""
        steps = self.draws * max(1, MANY // count)
        noise = [np.random.default_rng([self.seed, step]).standard_normal(count) for step in range(steps)]
        return [[float(factor) for factor in np.exp(self.straggling * row)] for row in noise]

    @property
    def mean_slowdown(self) -> float:
        """The mean slowdown of one machine."""
        return math.exp(self.straggling**2 / 2)


@dataclass(frozen=True)
class SpeedupPoint:
    """One net on a number of machines. quiet_s: the step if no machine is slow. min_load: as in placement.Score."""

    task: str
    machines: int
    step_s: float
    quiet_s: float
    speedup: float
    plan: str
    bytes_forward: int
    min_load: float


@dataclass(frozen=True)
class StatedSpeedup:
    """A speed-up that the paper's text gives (section 5, on figure 3). at_least: whether it says "more than"."""

    task: str
    machines: int
    speedup: float
    at_least: bool


# The text alone: the paper prints the curves as a picture without numbers, and nothing is read off it here.
STATED = (StatedSpeedup("speech", 8, 2.2, at_least=False), StatedSpeedup("local_1700m", 81, 12.0, at_least=True))


@dataclass(frozen=True)
class Figure3:
    """All points, in the order of nets and machines, and what they were simulated with."""

    assumed: AssumedMachines
    batch: int
    points: tuple[SpeedupPoint, ...]
    seconds: float

    @property
    def nets(self) -> list[str]:
        """The names of the nets."""
        return list(dict.fromkeys(point.task for point in self.points))

    def select(self, task: str) -> list[SpeedupPoint]:
        """Return the points of one net."""
        return [point for point in self.points if point.task == task]

    @property
    def assumptions(self) -> list[str]:
        """What was simulated, in lines that fit below the picture."""
        assumed = self.assumed
        return [
            f"Machines: {format_count(assumed.flops_per_s)}FLOP/s, {format_bytes(assumed.memory_bytes)} of memory, "
            f"{format_count(assumed.memory_bandwidth)}B/s to it.",
            f"Network: {format_count(assumed.bandwidth)}B/s each way, latency {format_seconds(assumed.latency_s)}, "
            f"{format_seconds(assumed.message_s)} a message at either end.",
            f"Steps: batches of {self.batch}, no micro-batches; the mean of {assumed.draws} steps or more.",
            f"Slowdown of a machine in a step: lognormal, sigma {assumed.straggling:g}, seed {assumed.seed}.",
        ]


PLAN_COLUMNS: tuple[Column[SpeedupPoint], ...] = (
    Column("net", "task", align="left"),
    Column("plan", "plan", align="left"),
    Column("machines", "machines"),
    Column("step", "step_s", format_seconds),
    Column("none slow", "quiet_s", format_seconds),
    Column("bytes forward", "bytes_forward", format_bytes),
    Column("", "speedup"),
    Column("", "min_load"),
)


def tabulate(figure: Figure3) -> tuple[BenchTable[int], BenchTable[SpeedupPoint]]:
    """Return the speed-ups by number of machines, beside what the paper's text says, and every plan."""
    speedups = {(point.task, point.machines): f"{point.speedup:.2f}" for point in figure.points}
    for stated in STATED:
        key = (stated.task, stated.machines)
        if key in speedups:
            speedups[key] += f" (paper {'>' if stated.at_least else ''}{stated.speedup:g})"

    def get_speedup(net: str) -> Callable[[int], str | None]:
        return lambda count: speedups.get((net, count))

    columns: list[Column[int]] = [
        Column("machines", value=lambda count: count, align="left"),
        *(Column(net, value=get_speedup(net)) for net in figure.nets),
    ]
    counts = sorted({point.machines for point in figure.points})
    facts = {
        "source": "Dean et al., Large Scale Distributed Deep Networks, NIPS 2012, figure 3",
        "assumed": _to_dict(figure.assumed) | {"batch": figure.batch},
        "stated": [_to_dict(stated) for stated in STATED],
        "seconds": figure.seconds,
    }
    notes = [*(summarise(figure.select(net)) for net in figure.nets)]
    notes.append(f"Planned and simulated in {format_seconds(figure.seconds)}.")
    title = "\n".join([*figure.assumptions, "", "Speed-up over one machine"])
    return (
        BenchTable(columns, counts, title=title),
        BenchTable(PLAN_COLUMNS, figure.points, title="The plans", notes=notes, name="points", facts=facts),
    )


def summarise(points: Sequence[SpeedupPoint]) -> str:
    """Say where a net is fastest."""
    best = max(points, key=lambda point: point.speedup)
    last = points[-1]
    beyond = "" if best is last else f", {last.speedup:.2f} times on {last.machines}"
    return f"{best.task}: fastest on {best.machines} machines, {best.speedup:.2f} times as fast as on one{beyond}."


def _to_dict(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def simulate_figure3(
    assumed: AssumedMachines,
    *,
    nets: Sequence[str] = NETS,
    counts: Sequence[int] = COUNTS,
    batch: int | None = None,
    candidates: str = "",
    tell: Callable[[SpeedupPoint], None] = lambda point: None,
) -> Figure3:
    """Plan and simulate every net on every number of machines.

    nets: names of bundled tasks. batch: samples of a step, by default the tasks' own. candidates: the kind of plans to
    choose among, as of `find_plan`. tell: is called with each point once it is there.
    """
    began = time.perf_counter()
    points: list[SpeedupPoint] = []
    samples = 0
    for net in nets:
        capture = capture_task(TaskSpec(f"cutset.models:{net}", batch=batch))
        samples = capture.batch
        for point in simulate_curve(net, capture.train, counts, assumed, candidates=candidates):
            points.append(point)
            tell(point)
    return Figure3(assumed, samples, tuple(points), time.perf_counter() - began)


def simulate_curve(
    task: str, graph: Graph, counts: Sequence[int], assumed: AssumedMachines, *, candidates: str = ""
) -> Iterator[SpeedupPoint]:
    """Yield the points of one net. One machine waits for nobody, so its mean step is that of its mean slowdown."""
    costs = CostModel(graph.tensors)
    alone = find_plan(graph, assumed.cluster(1)).winner
    single_s = simulate(alone.dataflow, assumed.cluster(1), costs=costs, slowdown=[assumed.mean_slowdown]).step_s
    for count in counts:
        cluster = assumed.cluster(count)
        winner = alone if count == 1 else find_plan(graph, cluster, seed=assumed.seed, candidates=candidates).winner
        step_s = single_s if count == 1 else _mean_step_s(winner.dataflow, cluster, assumed, costs)
        quiet_s, sent = winner.simulation.step_s, winner.bytes_forward
        yield SpeedupPoint(task, count, step_s, quiet_s, single_s / step_s, winner.name, sent, winner.min_load)


def _mean_step_s(dataflow: Dataflow, cluster: Cluster, assumed: AssumedMachines, costs: CostModel) -> float:
    steps = [
        simulate(dataflow, cluster, costs=costs, slowdown=slowdown).step_s
        for slowdown in assumed.slowdowns(len(cluster))
    ]
    return sum(steps) / len(steps)
