"""`cutset bench data`: training speed with transforms of samples that cost as much as a step, and without.

Samples are read ahead, in processes beside each that trains; so a transform should cost nothing where it waits (for a
disk, a network), or where a core is free for it.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from ....models.task import Task
from ....ps.methods.registry import parse_method
from ...config.run_config import RunConfig
from ...job.prepare import prepare
from ...train import run
from ..bench_table import BenchTable, Column

NONE, WAITS, COMPUTES = "none", "waits", "computes"
TRANSFORMS = (NONE, WAITS, COMPUTES)
GOAL = 0.9  # of the speed without transforms, where cores are free for the readers
REPLICAS, BATCH, WIDTH, CLASSES, STEPS = 2, 32, 1024, 10, 120
TIMED_STEPS = 30


class Images(Dataset[tuple[Tensor, int]]):
    """Random images. transform: what happens to each as it is read, for `seconds`: of a clock, or of a core."""

    def __init__(self, count: int, transform: str, seconds: float) -> None:
        self._transform, self._seconds = transform, seconds
        self._images = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(count))

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        if self._transform == WAITS:
            time.sleep(self._seconds)
        elif self._transform == COMPUTES:
            end = time.thread_time() + self._seconds
            while time.thread_time() < end:
                pass
        return self._images[number], number % CLASSES


def images(transform: str = NONE, seconds: float = 0.0) -> Task:
    """Return the task that is measured; its test samples have no transform."""
    sizes = {"train": (STEPS * BATCH * REPLICAS, transform), "test": (BATCH, NONE)}
    data = {split: Images(count, of_split, seconds) for split, (count, of_split) in sizes.items()}
    return Task("images", _build_net, nn.functional.cross_entropy, data=data.__getitem__, batch=BATCH)


def _build_net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)
    )


@dataclass(frozen=True)
class DataSpeed:
    """The speed of one way to train with one transform, by rounds, in samples/s.

    threads: that train, in all of its processes. relative: its speed as a part of that without transforms, by rounds.
    """

    how: str
    threads: int
    transform: str
    speeds: Sequence[float]
    relative: Sequence[float]

    @property
    def samples_per_s(self) -> float:
        """The median over rounds."""
        return statistics.median(self.speeds)

    @property
    def ratio(self) -> float:
        """The median over rounds of the speed beside that without transforms."""
        return statistics.median(self.relative)

    @property
    def has_goal(self) -> bool:
        """Whether cores are free for the readers: a transform that waits, or fewer threads that train than cores."""
        return self.transform == WAITS or (self.transform == COMPUTES and self.threads < (os.cpu_count() or 1))

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None where there is none."""
        return self.ratio >= GOAL if self.has_goal else None


def time_step() -> float:
    """Return the seconds of a step in plain torch on one thread, as in the processes that train: the median."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model, (inputs, classes) = _build_net(), (torch.randn(BATCH, WIDTH), torch.arange(BATCH) % CLASSES)
        optimizer, seconds = torch.optim.SGD(model.parameters(), lr=0.01), []
        for _ in range(TIMED_STEPS):
            start = time.perf_counter()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), classes).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)
    finally:
        torch.set_num_threads(threads)


def measure(*, rounds: int, on_progress: Callable[[str], object] = lambda line: None) -> tuple[float, list[DataSpeed]]:
    """Return the seconds of a step, and the speeds; each round trains once with each transform, in turn."""
    step_s = time_step()
    speeds: dict[tuple[str, int, str], list[float]] = {}
    for number in range(rounds):
        for transform in TRANSFORMS:
            for how, threads, speed in _train(transform, step_s / BATCH):
                speeds.setdefault((how, threads, transform), []).append(speed)
                on_progress(f"round {number + 1}: {how}, transform {transform}: {speed:.0f} samples/s")
    found = []
    for (how, threads, transform), own in sorted(speeds.items(), key=lambda item: item[0][1]):
        plain = speeds[how, threads, NONE]
        relative = [one / other for one, other in zip(own, plain, strict=True)]
        found.append(DataSpeed(how, threads, transform, own, relative))
    return step_s, found


def _train(transform: str, seconds: float) -> list[tuple[str, int, float]]:
    """Train in one process and by replicas; return the name, threads and samples/s of each."""
    name = f"{__name__}:images(transform={transform!r},seconds={seconds!r})"
    with tempfile.TemporaryDirectory(prefix="cutset-data-") as folder:
        method = parse_method("downpour")
        config = RunConfig(name, method=method, replicas=REPLICAS, epochs=1, lr=0.001, out=Path(folder) / "run")
        alone, together = run(prepare(config))["rows"]
    return [
        ("one process", int(alone["threads"]), float(alone["samples_per_s"])),
        (f"{REPLICAS} replicas", REPLICAS * int(together["threads"]), float(together["samples_per_s"])),
    ]


def tabulate(step_s: float, found: Sequence[DataSpeed]) -> BenchTable[DataSpeed]:
    """Return the table of the speeds."""
    columns: list[Column[DataSpeed]] = [
        Column("training", "how", align="left"),
        Column("transform", "transform", align="left"),
        Column("samples/s", "samples_per_s", format="{:.0f}".format),
        Column("of that without", "ratio", format="{:.2f}".format),
        Column("goal", "reached", format=lambda reached: f"{GOAL}: {'reached' if reached else 'missed'}"),
    ]
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    notes = (
        f"The transforms of a batch of {BATCH} cost as much as a step, {1000 * step_s:.2f} ms; {cores} cores here.",
        "The goal is for cores that are free: a transform that waits, or fewer threads that train than cores.",
        f"Load average of this machine at the end: {load:.1f}; above the processes of the benchmark, no core was free.",
    )
    return BenchTable(columns, found, notes=notes, facts={"step_s": step_s, "cores": cores, "load": load})
