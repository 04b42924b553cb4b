"""`cutset bench methods`: every method and plain torch on the same samples: accuracy, speed, staleness and bytes sent.

Each trains once over all epochs, with tests on the way, for its accuracy. Then all are timed in turn: in each round
each trains for three epochs without tests, so that a disturbance hits all of them alike. Neither starting processes nor
testing counts.
"""

import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import msgspec

from ....models.sample_stream import SampleStream
from ....runtime.hosts.host import Role
from ....runtime.launcher.launcher import Launcher
from ...config.run_config import RunConfig
from ...job.job import Job
from ...job.prepare import prepare
from ...samples.read_samples import read_split
from ...task.load_task import TaskSpec, load_task
from ...train import run
from .plain_torch import ALONE, DDP, HOGWILD, PROCESSES, TorchResult, TorchSetup
from .settings import MethodSetting

TASK = "cutset.models:mnist"
REPLICAS = 2
TARGET = 0.96
TESTS = 4  # in an epoch
SPEED_EPOCHS = 3
LR, BATCH = 0.1, 128
ONE, TWO_THREADS = "one process", "one process, 2 threads"
DDP_64, DDP_128, TORCH_HOGWILD = "torch DDP, 2 x 64", "torch DDP, 2 x 128", "torch Hogwild"
Tell = Callable[[str], None]


@dataclass(frozen=True)
class TrainingResult:
    """What a training over all epochs came to.

    curve: samples and test accuracy. beside: the same of one process with the same optimizer.
    """

    curve: tuple[tuple[int, float], ...]
    samples_per_s: float
    staleness_mean: float | None = None
    staleness_max: int | None = None
    bytes_per_step: float | None = None
    beside: "TrainingResult | None" = None

    @property
    def accuracy(self) -> float:
        """The test accuracy after all epochs."""
        return self.curve[-1][1]

    @property
    def to_target(self) -> int | None:
        """The samples trained when a test first reached the target; None if none did."""
        return next((samples for samples, accuracy in self.curve if accuracy >= TARGET), None)


class Contestant(Protocol):
    """One way to train, a row of the table. tuning: how its rate was found."""

    name: str
    settings: str
    tuning: str
    processes: int

    def learn(self, epochs: int) -> TrainingResult:
        """Train over all epochs, with tests."""
        ...

    def measure_speed(self) -> float:
        """Train over a few epochs without tests and return the samples per second."""
        ...


@dataclass(frozen=True)
class MethodResult:
    """One row of the table. rates: samples per second in each round, or in the one training if there were no rounds.

    ours: whether it is one of our methods, not torch's.
    """

    name: str
    settings: str
    tuning: str
    processes: int
    learned: TrainingResult
    rates: tuple[float, ...]
    ours: bool = False

    @property
    def samples_per_s(self) -> float:
        """The median rate."""
        return median(self.rates)

    @property
    def to_target_s(self) -> float | None:
        """The seconds to the target at the median rate; None if it was not reached."""
        return None if self.learned.to_target is None else self.learned.to_target / self.samples_per_s


class PlainTorch:
    """A program as torch documents it. batch: of all its processes together."""

    def __init__(self, name: str, entry: str, data: str, *, roles: int = 1, batch: int = BATCH, lr: float = LR) -> None:
        self.name, self.settings, self.tuning = name, f"SGD, rate {lr:g}, batch {batch}", ""
        self.processes = PROCESSES if entry in (DDP, HOGWILD) else 1
        self._entry, self._roles, self._threads = entry, roles, 2 if name == TWO_THREADS else 1
        self._setup = TorchSetup(TaskSpec(TASK, data), lr, batch, 0)
        self._count = len(read_split(load_task(self._setup.spec), "train"))

    def learn(self, epochs: int) -> TrainingResult:
        """Train over all epochs, with tests."""
        steps = self._count_steps(epochs)
        result = self._run(steps, every=max(1, steps // (TESTS * epochs) // PROCESSES) * PROCESSES)
        return TrainingResult(tuple(result.curve), result.samples / result.seconds)

    def measure_speed(self) -> float:
        """Train over a few epochs without tests and return the samples per second."""
        result = self._run(self._count_steps(SPEED_EPOCHS), every=0)
        return result.samples / result.seconds

    def _count_steps(self, epochs: int) -> int:
        """Return the steps of so many epochs, the same number for each of the processes."""
        return SampleStream(self._count, batch=self._setup.batch, seed=0).steps(epochs) // PROCESSES * PROCESSES

    def _run(self, steps: int, *, every: int) -> TorchResult:
        with tempfile.TemporaryDirectory(prefix="cutset-bench-") as folder:
            store = str(Path(folder) / "store")
            setups = [
                msgspec.structs.replace(self._setup, steps=steps, every=every, rank=rank, store=store)
                for rank in range(self._roles)
            ]
            roles = [
                Role(f"torch-{setup.rank}", self._entry, msgspec.to_builtins(setup), threads=self._threads)
                for setup in setups
            ]
            with Launcher(roles, job=f"methods-{uuid.uuid4().hex[:12]}") as launcher:
                first, *_ = launcher.run()
        return msgspec.convert(first, TorchResult)


class CutsetMethod:
    """One of our methods, run as `cutset train` runs it."""

    def __init__(self, setting: MethodSetting, data: str, folder: Path) -> None:
        self.name, self.tuning = setting.name, setting.tuning
        self.settings, self._takes_epochs = setting.method, setting.optimizer != ""
        self._config = RunConfig(
            TASK,
            data=data,
            method=setting.method,
            out=folder,
            replicas=REPLICAS,
            shards=1,
            baseline=setting.baseline,
        )
        if self._takes_epochs:
            self.settings += f"; {setting.optimizer}, rate {setting.lr:g}"
            rated = replace(self._config, optimizer=setting.optimizer, lr=setting.lr)
            self._config = replace(rated, batch=BATCH, target=TARGET)
        self.processes = REPLICAS + 1
        self._once: Job | None = None

    def learn(self, epochs: int) -> TrainingResult:
        result = self._run(self._prepare(epochs), tests=TESTS * epochs)
        beside = _read_result(result["rows"][0]) if self._config.baseline else None
        return replace(_read_result(result["rows"][-1]), beside=beside)

    def measure_speed(self) -> float:
        if self._once is None:
            self._once = self._prepare(SPEED_EPOCHS, baseline=False)
        rate: float = self._run(self._once, tests=0)["rows"][-1]["samples_per_s"]
        return rate

    def _prepare(self, epochs: int, **changes: Any) -> Job:
        """Return the job of so many epochs; a batch method takes the same passes over all samples each time."""
        config = replace(self._config, **changes)
        return prepare(replace(config, epochs=epochs) if self._takes_epochs else config)

    def _run(self, job: Job, *, tests: int) -> dict[str, Any]:
        every = max(1, job.training.steps // tests) if tests else 0
        training = msgspec.structs.replace(job.training, evaluate_every=every)
        return run(replace(job, training=training))


def _read_result(row: dict[str, Any]) -> TrainingResult:
    curve = tuple((int(point["samples"]), float(point["test_accuracy"])) for point in row["curve"])
    late = row.get("staleness_mean"), row.get("staleness_max")
    return TrainingResult(curve, row["samples_per_s"], *late, row["bytes_per_step"])


def make_contestants(data: str, folder: Path, settings: Sequence[MethodSetting]) -> list[Contestant]:
    """Return plain torch in several ways, and then the methods."""
    plain: list[Contestant] = [
        PlainTorch(ONE, ALONE, data),
        PlainTorch(TWO_THREADS, ALONE, data),
        PlainTorch(DDP_64, DDP, data, roles=PROCESSES),
        PlainTorch(DDP_128, DDP, data, roles=PROCESSES, batch=2 * BATCH, lr=2 * LR),
        PlainTorch(TORCH_HOGWILD, HOGWILD, data),
    ]
    return plain + [CutsetMethod(setting, data, folder / str(i)) for i, setting in enumerate(settings)]


def measure(entries: Sequence[Contestant], *, epochs: int, rounds: int, tell: Tell) -> list[MethodResult]:
    """Train and time all; one process by a method's own optimizer follows that method.

    tell: is called with a line of progress now and then.
    """
    learned: dict[str, TrainingResult] = {}
    for entry in entries:
        began = time.monotonic()
        learned[entry.name] = entry.learn(epochs)
        tell(f"{entry.name}: {learned[entry.name].accuracy:.2%} after {time.monotonic() - began:.0f} s")
    rates: dict[str, list[float]] = {entry.name: [] for entry in entries}
    for number in range(rounds):
        for entry in entries:
            rates[entry.name].append(entry.measure_speed())
            tell(f"round {number + 1}: {entry.name}, {rates[entry.name][-1]:.0f} samples/s")
    results = []
    for entry in entries:
        result = learned[entry.name]
        measured, ours = tuple(rates[entry.name]) or (result.samples_per_s,), isinstance(entry, CutsetMethod)
        results.append(MethodResult(entry.name, entry.settings, entry.tuning, entry.processes, result, measured, ours))
        if result.beside is not None:
            settings, speed = entry.settings.partition("; ")[2], (result.beside.samples_per_s,)
            results.append(MethodResult(f"{ONE}, {settings}", settings, "", 1, result.beside, speed))
    return results
