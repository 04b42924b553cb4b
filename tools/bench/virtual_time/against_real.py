"""How near simulated runs are to real ones: methods and settings, each by processes and in virtual time, by some seeds.

Staleness, and the time to an accuracy, are compared. The processes' steps take the seconds that are drawn, or longer
where the machine is busy; those of the simulation take as long as the processes' did. What a message takes between
processes is measured first, with one replica.

Means over seeds are compared: by one seed or another the time to an accuracy varies by a tenth to a third, as each
order in which gradients meet leads to another curve.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

import msgspec

from ...task.load_task import TaskSpec, load_task
from ...units import format_seconds
from ...virtual_time.machines import SimulatedMachines, StepDurations
from ...virtual_time.replica import SharedModel
from ...virtual_time.results import SimulatedRun, SimulationSpec
from ...virtual_time.samples import SplitSamples, read_samples_of
from ...virtual_time.virtual_run import VirtualRun
from ..bench_table import BenchTable, Column
from .real_replicas import run_real

BATCH = 128
CALIBRATION_STEPS = 40
ACCURACY = 0.9


class ComparedMethod(msgspec.Struct, frozen=True):
    """A method with its optimizer, and after how many batches of all replicas it has surely reached the accuracy."""

    method: str
    optimizer: str
    lr: float
    batches: int


class ComparedSetting(msgspec.Struct, frozen=True):
    """Replicas, of which the first may be slow. spread: of the logarithm of a step's seconds."""

    name: str
    replicas: int
    spread: float
    slowdown: float = 1.0


METHODS = (
    ComparedMethod("downpour", "sgd", 0.1, 420),
    ComparedMethod("downpour:fetch=2,push=2", "adagrad", 0.01, 340),
    ComparedMethod("ssp:staleness=2", "sgd", 0.1, 420),
    ComparedMethod("averaging:every=5", "sgd", 0.2, 720),
)
SETTINGS = (
    ComparedSetting("2 even replicas", 2, 0.3),
    ComparedSetting("4 uneven replicas", 4, 0.5),
    ComparedSetting("3 replicas, one 2 x slower", 3, 0.3, 2.0),
)


@dataclass(frozen=True)
class Comparison:
    """Runs by processes and the same in virtual time, a pair for each seed.

    late: how much longer than drawn the processes' steps took.
    """

    setting: str
    method: str
    real: tuple[SimulatedRun, ...]
    simulated: tuple[SimulatedRun, ...]
    late: float

    @property
    def staleness(self) -> tuple[float, float]:
        """The mean staleness, real and simulated."""
        real, simulated = (mean(run.staleness["mean"] or 0.0 for run in runs) for runs in (self.real, self.simulated))
        return real, simulated

    @property
    def to_accuracy(self) -> tuple[float | None, float | None]:
        """The mean seconds to the accuracy, real and simulated; None if by one of the seeds it was never reached."""
        return _find_mean_time(self.real), _find_mean_time(self.simulated)

    @property
    def between_seeds(self) -> float:
        """By how much the real times to the accuracy differ from seed to seed: the widest difference, of their mean."""
        times = [seconds for run in self.real if (seconds := run.seconds_to(ACCURACY)) is not None]
        return (max(times) - min(times)) / mean(times) if times else 0.0

    @property
    def overlap(self) -> float:
        """The part of the pushes on which both histograms of the staleness agree."""
        real, simulated = (_read_parts(runs) for runs in (self.real, self.simulated))
        return sum(min(part, simulated.get(tau, 0.0)) for tau, part in real.items())


def _find_mean_time(runs: Sequence[SimulatedRun]) -> float | None:
    times = [run.seconds_to(ACCURACY) for run in runs]
    return None if None in times else mean(seconds for seconds in times if seconds is not None)


def _read_parts(runs: Sequence[SimulatedRun]) -> dict[int, float]:
    """Return by staleness which part of the pushes had it."""
    counts = Counter[int]()
    for run in runs:
        counts.update(dict(run.staleness["histogram"]))
    return {tau: count / counts.total() for tau, count in counts.items()}


class Comparer:
    """Compares runs of a task. step_s: the mean of a step's seconds, more than it takes to compute one.

    seeds: for so many, 0 and up, each comparison runs.
    """

    def __init__(self, task: TaskSpec, *, step_s: float, batch: int = BATCH, seeds: int = 1) -> None:
        loaded = load_task(task)
        self._task, self._step_s, self._batch = task, step_s, batch
        self._models = [SharedModel(loaded, seed=seed) for seed in range(seeds)]
        self._samples = read_samples_of(loaded)
        self.message_s = self._measure_message()

    def compare(self, setting: ComparedSetting, method: ComparedMethod) -> Comparison:
        """Run both, by each seed."""
        machines = SimulatedMachines(
            step_s=self._step_s,
            spread=setting.spread,
            stragglers=int(setting.slowdown > 1),
            slowdown=setting.slowdown,
            latency_s=self.message_s,
        )
        spec = self._make_spec(method, setting.replicas, machines, method.batches)
        mean_s = self._step_s * method.batches / setting.replicas
        seeded = [msgspec.structs.replace(spec, seed=model.seed) for model in self._models]
        real = tuple(run_real(self._task, one, test_every_s=mean_s / 40) for one in seeded)
        pairs = list(zip(seeded, real, strict=True))
        simulated = tuple(
            self._simulate(one, run, model) for (one, run), model in zip(pairs, self._models, strict=True)
        )
        taken_s = sum(map(sum, (steps for run in real for steps in run.step_s)))
        late = taken_s / sum(_sum_drawn(one, run) for one, run in pairs) - 1
        return Comparison(setting.name, method.method, real, simulated, late)

    def _measure_message(self) -> float:
        """Return half of what a lone replica needs for a step beside the step: to send, to wait, to take in values."""
        machines = SimulatedMachines(step_s=self._step_s)
        spec = self._make_spec(METHODS[0], 1, machines, CALIBRATION_STEPS)
        real = run_real(self._task, spec, test_every_s=10.0)
        return (real.seconds - sum(real.step_s[0])) / CALIBRATION_STEPS / 2

    def _make_spec(
        self, method: ComparedMethod, replicas: int, machines: SimulatedMachines, batches: int
    ) -> SimulationSpec:
        return SimulationSpec(
            method.method,
            method.optimizer,
            method.lr,
            self._batch,
            self._batch * batches,
            replicas,
            machines=machines,
            points=40,
            turns=True,
        )

    def _simulate(self, spec: SimulationSpec, real: SimulatedRun, model: SharedModel) -> SimulatedRun:
        """Simulate a run whose steps take as long as those of the processes did."""
        machines = msgspec.structs.replace(spec.machines, recorded_s=tuple(map(tuple, real.step_s)))
        samples = SplitSamples(self._samples.train, self._samples.test, most=100)
        return VirtualRun(msgspec.structs.replace(spec, machines=machines), model, samples).run()


def _sum_drawn(spec: SimulationSpec, real: SimulatedRun) -> float:
    """Return the seconds that were drawn for the steps of all replicas."""
    durations = [StepDurations(spec.machines, number, spec.seed) for number in range(spec.replicas)]
    return sum(one.draw() for one, taken in zip(durations, real.step_s, strict=True) for _ in taken)


def compare_all(
    task: TaskSpec,
    *,
    step_s: float,
    seeds: int,
    settings: Sequence[ComparedSetting] = SETTINGS,
    methods: Sequence[ComparedMethod] = METHODS,
    tell: Callable[[str], None],
) -> list[Comparison]:
    """Compare all methods in all settings."""
    comparer, results = Comparer(task, step_s=step_s, seeds=seeds), list[Comparison]()
    tell(f"half an exchange with a shard takes {format_seconds(comparer.message_s)}")
    for setting in settings:
        for method in methods:
            results.append(comparer.compare(setting, method))
            real, simulated = results[-1].to_accuracy
            tell(f"{setting.name}, {method.method}: {format_seconds(real)}, simulated {format_seconds(simulated)}")
    return results


def tabulate(results: Sequence[Comparison]) -> BenchTable[Comparison]:
    """Return the table of the comparisons."""
    columns: tuple[Column[Comparison], ...] = (
        Column("replicas", "setting", align="left"),
        Column("method", "method", align="left"),
        Column("staleness", "staleness_real", "{:.2f}".format, lambda row: row.staleness[0]),
        Column("simulated", "staleness_simulated", "{:.2f}".format, lambda row: row.staleness[1]),
        Column("histograms agree", "overlap", "{:.0%}".format),
        Column(f"to {ACCURACY:.0%}", "seconds_real", format_seconds, lambda row: row.to_accuracy[0]),
        Column("simulated", "seconds_simulated", format_seconds, lambda row: row.to_accuracy[1]),
        Column("steps late", "late", "{:.0%}".format),
        Column("differ by", "difference", "{:+.0%}".format, _find_difference),
        Column("between seeds", "between_seeds", "{:.0%}".format),
    )
    return BenchTable(columns, results)


def _find_difference(row: Comparison) -> float | None:
    real, simulated = row.to_accuracy
    return None if real is None or simulated is None else simulated / real - 1
