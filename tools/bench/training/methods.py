"""Every method beside plain torch on the same samples: how well it learns, how fast it is, and what it sends.

Each is trained once over all epochs, with tests on the way, for its accuracy. Then all take turns: in each round each
trains for three epochs without tests, so that a busy second hits all of them alike. No clock counts the start of
processes or a test.
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
from ....ps.methods.registry import method
from ....ps.optimizers.registry import rule
from ....runtime.launcher.launcher import Launcher, Role
from ...task.load_task import TaskSpec, load_task, read_split
from ...task.plan_task import Wanted
from ...job.prepare import Options, Prepared, prepare
from ...train import run
from .settings import Setting
from .plain_torch import ALONE, DDP, HOGWILD, PROCESSES, Plain, Trained

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
class Learned:
    """How a training over all epochs went. curve: samples and test accuracy."""

    curve: tuple[tuple[int, float], ...]
    samples_per_s: float
    staleness_mean: float | None = None
    staleness_max: int | None = None
    bytes_per_step: float | None = None
    beside: "Learned | None" = None  # one process by the same rule

    @property
    def accuracy(self) -> float:
        """After all epochs."""
        return self.curve[-1][1]

    @property
    def to_target(self) -> int | None:
        """Samples after which a test reached the target first."""
        return next((samples for samples, accuracy in self.curve if accuracy >= TARGET), None)


class Contestant(Protocol):
    """One row of the table."""

    name: str
    settings: str
    found: str
    processes: int

    def learn(self, epochs: int) -> Learned:
        """Train over all epochs, with tests."""
        ...

    def speed(self) -> float:
        """Train over a few epochs without tests: samples a second."""
        ...


@dataclass(frozen=True)
class MethodRow:
    """rates: samples a second in each round; of the one training where there were no rounds. ours: not of torch."""

    name: str
    settings: str
    found: str
    processes: int
    learned: Learned
    rates: tuple[float, ...]
    ours: bool = False

    @property
    def samples_per_s(self) -> float:
        """The median."""
        return median(self.rates)

    @property
    def to_target_s(self) -> float | None:
        """Seconds to the target, at the median rate."""
        return None if self.learned.to_target is None else self.learned.to_target / self.samples_per_s


class PlainTorch:
    """A program as torch documents it. batch: of all its processes together."""

    def __init__(self, name: str, entry: str, data: str, *, roles: int = 1, batch: int = BATCH, lr: float = LR) -> None:
        self.name, self.settings, self.found = name, f"SGD, rate {lr:g}, batch {batch}", ""
        self.processes = PROCESSES if entry in (DDP, HOGWILD) else 1
        self._entry, self._roles, self._threads = entry, roles, 2 if name == TWO_THREADS else 1
        self._plain = Plain(TaskSpec(TASK, data), lr, batch, 0)
        self._count = len(read_split(load_task(self._plain.spec), "train"))

    def learn(self, epochs: int) -> Learned:
        steps = self._steps(epochs)
        trained = self._run(steps, every=max(1, steps // (TESTS * epochs) // PROCESSES) * PROCESSES)
        return Learned(tuple(trained.curve), trained.samples / trained.seconds)

    def speed(self) -> float:
        trained = self._run(self._steps(SPEED_EPOCHS), every=0)
        return trained.samples / trained.seconds

    def _steps(self, epochs: int) -> int:
        """As many for each of the processes."""
        return SampleStream(self._count, batch=self._plain.batch, seed=0).steps(epochs) // PROCESSES * PROCESSES

    def _run(self, steps: int, *, every: int) -> Trained:
        with tempfile.TemporaryDirectory(prefix="cutset-bench-") as folder:
            store = str(Path(folder) / "store")
            setups = [
                msgspec.structs.replace(self._plain, steps=steps, every=every, rank=rank, store=store)
                for rank in range(self._roles)
            ]
            roles = [
                Role(f"torch-{setup.rank}", self._entry, msgspec.to_builtins(setup), threads=self._threads)
                for setup in setups
            ]
            with Launcher(roles, job=f"methods-{uuid.uuid4().hex[:12]}") as launcher:
                first, *_ = launcher.run()
        return msgspec.convert(first, Trained)


class Ours:
    """One of our methods, through the launcher as `cutset train` runs it."""

    def __init__(self, setting: Setting, data: str, folder: Path) -> None:
        self.name, self.found = setting.name, setting.found
        self.settings = f"{setting.method}; {setting.rule}, rate {setting.lr:g}"
        self._options = Options(
            spec=TaskSpec(TASK, data, batch=BATCH),
            method=method(setting.method, {}),
            rule=rule(setting.rule, setting.lr),
            out=folder,
            wanted=Wanted(machines=1),
            replicas=REPLICAS,
            shards=1,
            baseline=setting.beside,
            target=TARGET,
        )
        self.processes = REPLICAS + self._options.shards
        self._once: Prepared | None = None

    def learn(self, epochs: int) -> Learned:
        result = self._run(prepare(replace(self._options, epochs=epochs)), tests=TESTS * epochs)
        beside = _learned(result["rows"][0]) if self._options.baseline else None
        return replace(_learned(result["rows"][-1]), beside=beside)

    def speed(self) -> float:
        if self._once is None:
            self._once = prepare(replace(self._options, baseline=False, epochs=SPEED_EPOCHS))
        rate: float = self._run(self._once, tests=0)["rows"][-1]["samples_per_s"]
        return rate

    def _run(self, job: Prepared, *, tests: int) -> dict[str, Any]:
        every = max(1, job.course.steps // tests) if tests else 0
        course = msgspec.structs.replace(job.course, evaluate_every=every)
        return run(replace(job, course=course), lambda name, step, steps, loss: None)


def _learned(row: dict[str, Any]) -> Learned:
    curve = tuple((int(point["samples"]), float(point["test_accuracy"])) for point in row["curve"])
    late = row["staleness_mean"], row["staleness_max"]
    return Learned(curve, row["samples_per_s"], *late, row["bytes_per_step"])


def contestants(data: str, folder: Path, settings: Sequence[Setting]) -> list[Contestant]:
    """Plain torch, then the methods."""
    plain: list[Contestant] = [
        PlainTorch(ONE, ALONE, data),
        PlainTorch(TWO_THREADS, ALONE, data),
        PlainTorch(DDP_64, DDP, data, roles=PROCESSES),
        PlainTorch(DDP_128, DDP, data, roles=PROCESSES, batch=2 * BATCH, lr=2 * LR),
        PlainTorch(TORCH_HOGWILD, HOGWILD, data),
    ]
    return plain + [Ours(setting, data, folder / str(i)) for i, setting in enumerate(settings)]


def measure(entries: Sequence[Contestant], *, epochs: int, rounds: int, tell: Tell) -> list[MethodRow]:
    """The rows, those of one process by a method's own rule right after the method's."""
    learned: dict[str, Learned] = {}
    for entry in entries:
        began = time.monotonic()
        learned[entry.name] = entry.learn(epochs)
        tell(f"{entry.name}: {learned[entry.name].accuracy:.2%} after {time.monotonic() - began:.0f} s")
    rates: dict[str, list[float]] = {entry.name: [] for entry in entries}
    for turn in range(rounds):
        for entry in entries:
            rates[entry.name].append(entry.speed())
            tell(f"round {turn + 1}: {entry.name}, {rates[entry.name][-1]:.0f} samples/s")
    rows = []
    for entry in entries:
        found = learned[entry.name]
        mine = tuple(rates[entry.name]) or (found.samples_per_s,)
        rows.append(
            MethodRow(entry.name, entry.settings, entry.found, entry.processes, found, mine, isinstance(entry, Ours))
        )
        if found.beside is not None:
            words = entry.settings.partition("; ")[2]
            rows.append(MethodRow(f"{ONE}, {words}", words, "", 1, found.beside, (found.beside.samples_per_s,)))
    return rows
