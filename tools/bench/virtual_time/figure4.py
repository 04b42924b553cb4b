"""DistBelief's figure 4: accuracy against time for one process and for all methods, with simulated machines.

Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 5: one replica, Downpour SGD with 20 replicas,
with and without Adagrad, with 200, and Sandblaster L-BFGS with 2000. Beside these stand the methods that came later.
Parameters, gradients, methods and shards are real; the time that steps, messages and shards take is simulated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ....errors import UsageError
from ...task.load_task import load_task
from ...units import format_percent, format_seconds
from ...virtual_time.machines import SimulatedMachines
from ...virtual_time.replica import SharedModel
from ...virtual_time.results import Point, SimulatedRun, SimulationSpec, find_crossing
from ...virtual_time.samples import read_samples_of
from ...virtual_time.sandblaster import BatchWork, time_iterations
from ..bench_table import BenchTable, Column
from .curve_runs import CurveResult, CurveSetup, Tell, run_curves
from .figure_request import MANY, ONE, SOME, CurveSetting, FigureRequest

SANDBLASTER = "Sandblaster L-BFGS"
SETTINGS = (
    CurveSetting("one process, SGD", "sync", "sgd", count=ONE),
    CurveSetting("one process, Adagrad", "sync", "adagrad", count=ONE, adaptive=True),
    CurveSetting("Downpour SGD", "downpour", "sgd"),
    CurveSetting("Downpour SGD, lower rate", "downpour", "sgd", 0.3),
    CurveSetting("Downpour Adagrad", "downpour", "adagrad", adaptive=True),
    CurveSetting("Downpour Adagrad, lower rate", "downpour", "adagrad", 0.25, adaptive=True),
    CurveSetting("Downpour Adagrad, warm start", "downpour", "adagrad", adaptive=True, warm_start=100),
    CurveSetting("Downpour Adagrad, many", "downpour", "adagrad", 0.05, MANY, True, epochs=2.0, warm_start=200),
    CurveSetting("Downpour Adam over staleness, many", "downpour", "adam/tau", 0.15, MANY, True, warm_start=200),
    CurveSetting("SSP", "ssp:staleness=3", "sgd", 0.3),
    CurveSetting("sync", "sync", "sgd", 4.0),
    CurveSetting("sync, 2 backups", "sync:backups=2", "sgd", 4.0),
    CurveSetting("averaging", "averaging:every=10", "sgd", 2.0),
    CurveSetting("EASGD", "easgd:every=4", "sgd", 2.0),
    CurveSetting("DiLoCo", "diloco:every=10", "adamw", 0.01),
    CurveSetting("DC-ASGD", "downpour", "dc-asgd-c", 0.3),
    CurveSetting("AdaDelay", "downpour", "adadelay:beta=50", 20.0),
    CurveSetting("SGD over staleness", "downpour", "sgd/tau", 5.0),
    CurveSetting("Hogwild!", "hogwild", "sgd", 0.3),
)


@dataclass(frozen=True)
class Figure4Request(FigureRequest):
    """What is asked for. some, many, batch: the replicas of three kinds of curves. names: of curves, all by default."""

    some: int = 20
    many: int = 200
    batch: int = 2000
    iterations: int = 50
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Curve:
    """One curve of the figure. how: method, optimizer and rate. run: None for a batch method."""

    name: str
    how: str
    replicas: int
    points: Sequence[Point]
    run: SimulatedRun | None
    cpu_s: float
    peak_bytes: int

    def seconds_to(self, accuracy: float) -> float | None:
        """Return when the test accuracy first reached this."""
        return find_crossing(self.points, accuracy)

    @property
    def end(self) -> Point:
        """The last point."""
        return self.points[-1]

    @property
    def failure(self) -> str:
        """Why it ended early."""
        return "" if self.run is None else self.run.failure


@dataclass(frozen=True)
class Figure4:
    """The curves, and what was assumed."""

    task: str
    curves: Sequence[Curve]
    target: float
    facts: Sequence[str]


def choose_settings(names: Sequence[str]) -> list[str]:
    """Return the names of the curves that are asked for; UsageError (E286) for one that there is not."""
    known = [*(setting.name for setting in SETTINGS), SANDBLASTER]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError("E286", f"--curve {unknown[0]!r}; there are {', '.join(known)}", fix=f"--curve {known[0]!r}")
    return [name for name in known if not names or name in names]


def simulate_figure4(request: Figure4Request, folder: Path, *, jobs: int, tell: Tell) -> Figure4:
    """Run what is not in the folder yet, and return the figure."""
    names = choose_settings(request.names)
    task = load_task(request.task)
    samples, model = read_samples_of(task), SharedModel(task, seed=request.seed)
    count, size = len(samples.train), model.initial.nbytes
    settings = {setting.name: setting for setting in SETTINGS if setting.name in names}
    setups = {name: _make_setup(request, setting, task.batch, count) for name, setting in settings.items()}
    for setup in setups.values():
        assert setup.spec is not None
        request.assumed.check_memory(setup.spec, size)
    if SANDBLASTER in names:
        setups[SANDBLASTER] = CurveSetup(
            request.task, batch_method=f"sandblaster:iterations={request.iterations}", seed=request.seed
        )
    results = run_curves(setups, folder, jobs=jobs, tell=tell)
    work = BatchWork(count, task.batch, size)
    curves = [_make_curve(request, name, setups[name], result, work) for name, result in results.items()]
    facts = request.assumed.describe(parameters=size, batch=task.batch)
    return Figure4(task.name, curves, request.target, facts)


def _make_setup(request: Figure4Request, setting: CurveSetting, batch: int, count: int) -> CurveSetup:
    replicas = {ONE: 1, SOME: request.some, MANY: request.many}[setting.count]
    lr = request.choose_rate(setting)
    machines = request.assumed.for_replicas(replicas)
    if setting.count == ONE:
        machines = SimulatedMachines(step_s=machines.step_s, spread=machines.spread)
    samples = int(setting.epochs * request.epochs * count)
    warm_start = min(setting.warm_start, samples // batch // 10)
    method = f"{setting.method}:warm_start={warm_start}" if warm_start else setting.method
    spec = SimulationSpec(method, setting.optimizer, lr, batch, samples, replicas, seed=request.seed, machines=machines)
    return CurveSetup(request.task, spec)


def _make_curve(request: Figure4Request, name: str, setup: CurveSetup, result: CurveResult, work: BatchWork) -> Curve:
    if setup.spec is None or result.run is None:
        machines = request.assumed.for_replicas(request.batch)
        points = time_iterations(result.scores, work, machines, request.batch, seed=request.seed)
        return Curve(name, setup.batch_method, request.batch, points, None, result.cpu_s, result.peak_bytes)
    spec = setup.spec
    how = f"{spec.method}; {spec.optimizer}, rate {spec.lr:g}"
    return Curve(name, how, spec.replicas, result.run.points, result.run, result.cpu_s, result.peak_bytes)


def tabulate(figure: Figure4) -> BenchTable[Curve]:
    """Return the table of the curves."""
    columns: tuple[Column[Curve], ...] = (
        Column("curve", "name", align="left"),
        Column("method; optimizer", "how", align="left"),
        Column("replicas", "replicas"),
        Column("time", "seconds", format_seconds, lambda curve: curve.end.seconds),
        Column("samples", "samples", "{:,}".format, lambda curve: curve.end.samples),
        Column("test", "test_accuracy", _format_accuracy, lambda curve: curve.end.test_accuracy),
        Column("training", "train_accuracy", _format_accuracy, lambda curve: curve.end.train_accuracy),
        Column(
            f"to {figure.target:.0%}",
            "to_target_s",
            format_seconds,
            lambda curve: curve.seconds_to(figure.target),
        ),
        Column("staleness", "staleness", "{:.1f}".format, lambda curve: curve.run and curve.run.staleness["mean"]),
        Column("waiting", "waiting", format_percent, lambda curve: curve.run and curve.run.waiting),
        Column("", "failure"),
        Column("", "points", value=lambda curve: [msgspec.to_builtins(point) for point in curve.points]),
        Column("CPU", "cpu_s", format_seconds),
    )
    notes = [
        *figure.facts,
        *(f"{curve.name} ended early: {curve.failure}." for curve in figure.curves if curve.failure),
    ]
    return BenchTable(columns, figure.curves, notes=notes, name="curves", facts={"task": figure.task})


def _format_accuracy(accuracy: float) -> str:
    return format_percent(accuracy, digits=1)
