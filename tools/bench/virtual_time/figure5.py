"""DistBelief's figure 5: the time to a fixed accuracy against machines, and against cores, with simulated machines.

Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 5. A replica is as many machines as the planner
finds worth it: its step on 1, 2, 4 and 8 machines is that of the planner's own plan, simulated. Downpour has more and
more such replicas, Sandblaster too, and one replica alone is cut over more and more machines.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...task.capture_task import capture_task
from ...task.load_task import load_task
from ...units import format_seconds
from ...virtual_time.machines import SimulatedMachines
from ...virtual_time.replica import SharedModel
from ...virtual_time.results import SimulationSpec, find_crossing
from ...virtual_time.samples import read_samples_of
from ...virtual_time.sandblaster import BatchWork, time_iterations
from ..bench_table import BenchTable, Column
from ..planner.figure3 import AssumedMachines, SpeedupPoint, simulate_curve
from .assumptions import REPLICAS_PER_SHARD, Assumptions
from .curve_runs import CurveSetup, Tell, run_curves
from .figure_request import FigureRequest

WIDTHS = (1, 2, 4, 8)
WORTH = 0.6  # of the speed of as many machines that a wider replica must have
CUT, SGD, ADAGRAD, BATCH = "one replica, cut", "Downpour SGD", "Downpour Adagrad", "Sandblaster L-BFGS"


@dataclass(frozen=True)
class Figure5Request(FigureRequest):
    """What is asked for. replicas, batch_replicas: numbers of Downpour's and of Sandblaster's. cores: of a machine.

    epochs: that a run gives up after. lr, adaptive_lr: of one process; n replicas have these over the root of n, as at
    the same rate many are unstable.
    """

    epochs: float = 8.0
    replicas: Sequence[int] = (2, 8, 32, 100)
    batch_replicas: Sequence[int] = (8, 32, 128, 512, 2000)
    cores: int = 4
    iterations: int = 50


@dataclass(frozen=True)
class TimedRun:
    """How long a method takes on so many machines, shards included. seconds: None where it never gets there."""

    method: str
    replicas: int
    width: int
    machines: int
    cores: int
    seconds: float | None


@dataclass(frozen=True)
class Figure5:
    """All runs, and what was assumed. speedups: of a replica on some machines, by the planner."""

    task: str
    runs: Sequence[TimedRun]
    target: float
    speedups: Sequence[SpeedupPoint]
    facts: Sequence[str]

    @property
    def methods(self) -> list[str]:
        """The methods, in order."""
        return list(dict.fromkeys(run.method for run in self.runs))

    def select(self, method: str) -> list[TimedRun]:
        """Return the runs of a method."""
        return [run for run in self.runs if run.method == method]


def simulate_figure5(request: Figure5Request, folder: Path, *, jobs: int, tell: Tell) -> Figure5:
    """Run what is not in the folder yet, and return the figure."""
    task = load_task(request.task)
    samples, model = read_samples_of(task), SharedModel(task, seed=request.seed)
    count, size = len(samples.train), model.initial.nbytes
    speedups = plan_widths(request)
    width = choose_width(speedups)
    tell(f"a replica is {width} machines: " + ", ".join(f"{p.speedup:.2f} times on {p.machines}" for p in speedups))
    wide = replace(request.assumed, step_s=request.assumed.step_s / _speedup(speedups, width))
    setups = {CUT: CurveSetup(request.task, _make_spec(request, request.assumed, "sync", "sgd", request.lr, 1, count))}
    for replicas in request.replicas:
        for name, optimizer, lr in ((SGD, "sgd", request.lr), (ADAGRAD, "adagrad", request.adaptive_lr)):
            rate = round(lr / math.sqrt(replicas), 5)
            spec = _make_spec(request, wide, "downpour", optimizer, rate, replicas, count)
            request.assumed.check_memory(spec, size)
            setups[f"{name}, {replicas}"] = CurveSetup(request.task, spec)
    setups[BATCH] = CurveSetup(
        request.task, batch_method=f"sandblaster:iterations={request.iterations}", seed=request.seed
    )
    results = run_curves(setups, folder, jobs=jobs, tell=tell)
    runs = []
    alone = results[CUT].run
    alone_s = None if alone is None else find_crossing(alone.points, request.target)
    for point in speedups:
        seconds = None if alone_s is None else alone_s / point.speedup
        runs.append(TimedRun(CUT, 1, point.machines, point.machines, point.machines * request.cores, seconds))
    for name in (SGD, ADAGRAD):
        for replicas in request.replicas:
            run = results[f"{name}, {replicas}"].run
            seconds = None if run is None or run.failure else find_crossing(run.points, request.target)
            runs.append(_make_run(request, name, replicas, width, seconds))
    work = BatchWork(count, task.batch, size)
    for replicas in request.batch_replicas:
        points = time_iterations(results[BATCH].scores, work, wide.for_replicas(replicas), replicas, seed=request.seed)
        runs.append(_make_run(request, BATCH, replicas, width, find_crossing(points, request.target)))
    facts = [*request.assumed.describe(parameters=size, batch=task.batch), _describe_width(speedups, width)]
    return Figure5(task.name, runs, request.target, speedups, facts)


def plan_widths(request: Figure5Request) -> list[SpeedupPoint]:
    """Plan a replica on 1, 2, 4 and 8 machines, whose arithmetic takes one machine as long as a step is assumed to."""
    capture, assumed = capture_task(request.task), request.assumed
    quick = AssumedMachines(bandwidth=assumed.bandwidth, latency_s=assumed.latency_s, straggling=0.0, draws=1)
    [alone] = simulate_curve("", capture.train, (1,), quick)
    flops_per_s = quick.flops_per_s * alone.step_s / assumed.step_s
    slow = replace(
        quick,
        flops_per_s=flops_per_s,
        memory_bandwidth=quick.memory_bandwidth * alone.step_s / assumed.step_s,
        straggling=assumed.spread,
        draws=8,
        message_s=assumed.message_s,
    )
    return list(simulate_curve(capture.task.name, capture.train, WIDTHS, slow))


def choose_width(speedups: Sequence[SpeedupPoint]) -> int:
    """Return the most machines of a replica that are worth it."""
    return max(point.machines for point in speedups if point.speedup >= WORTH * point.machines or point.machines == 1)


def _speedup(speedups: Sequence[SpeedupPoint], width: int) -> float:
    return next(point.speedup for point in speedups if point.machines == width)


def _describe_width(speedups: Sequence[SpeedupPoint], width: int) -> str:
    widths = ", ".join(f"{point.speedup:.2f} on {point.machines}" for point in speedups)
    return (
        f"A replica is {width} machines, the most that compute at {WORTH:.0%} of their speed or better;"
        f" speed-up by the planner, simulated: {widths}."
    )


def _make_run(request: Figure5Request, name: str, replicas: int, width: int, seconds: float | None) -> TimedRun:
    machines = replicas * width + max(1, replicas // REPLICAS_PER_SHARD)
    return TimedRun(name, replicas, width, machines, machines * request.cores, seconds)


def _make_spec(
    request: Figure5Request, assumed: Assumptions, method: str, optimizer: str, lr: float, replicas: int, count: int
) -> SimulationSpec:
    machines = assumed.for_replicas(replicas)
    if replicas == 1:
        machines = SimulatedMachines(step_s=machines.step_s, spread=machines.spread)
    samples = int(request.epochs * count)
    batch = load_task(request.task).batch
    return SimulationSpec(
        method,
        optimizer,
        lr,
        batch,
        samples,
        replicas,
        seed=request.seed,
        machines=machines,
        points=60,
        target=request.target,
    )


def tabulate(figure: Figure5) -> BenchTable[TimedRun]:
    """Return the table of the runs."""
    columns: tuple[Column[TimedRun], ...] = (
        Column("method", "method", align="left"),
        Column("replicas", "replicas"),
        Column("of machines", "width"),
        Column("machines, with shards", "machines"),
        Column("cores", "cores"),
        Column(f"to {figure.target:.0%}", "seconds", format_seconds),
    )
    return BenchTable(columns, figure.runs, notes=figure.facts, name="runs", facts={"task": figure.task})
