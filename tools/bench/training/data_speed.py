"""`cutset bench data`: training speed with transforms of samples that cost as much as a step, and without.

Samples are read ahead, in processes beside each that trains; so a transform should cost nothing where it waits (for a
disk, a network), or where a core is free for it. A core is taken at the end of every wait, for a moment, which counts
the more the shorter a step is: a net of another width takes another time. What that costs by
itself is measured beside (bare_waits.py).
"""

import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from ....models.task import Task
from ....ps.methods.registry import parse_method
from ....runtime.hosts.versions import read_cores
from ...config.run_config import RunConfig
from ...job.prepare import prepare
from ...task.load_task import TaskSpec
from ...train import run
from ..bench_table import BenchTable, Column
from .bare_waits import measure_bare_waits
from .plain_loader import measure_loader

NONE, WAITS, COMPUTES = "none", "waits", "computes"
GOAL = 0.9  # of the speed without transforms, where cores are free for the readers
REPLICAS, BATCH, CLASSES, STEPS = 2, 32, 10, 200
WIDTH = 1024  # of all layers of the net, and of its images
LR = 0.001
ALONE, TOGETHER, TORCH, BARE = "one process", f"{REPLICAS} replicas", "torch, DataLoader", "torch, bare waits"
WAYS = (ALONE, TOGETHER, TORCH, BARE)
PEERS = (TORCH, BARE)


class Images(Dataset[tuple[Tensor, int]]):
    """Random images [width]. transform: what happens to each when read, for `seconds` of a clock or of a core."""

    def __init__(self, count: int, transform: str, seconds: float, width: int = WIDTH) -> None:
        self._transform, self._seconds = transform, seconds
        self._images = torch.randn(count, width, generator=torch.Generator().manual_seed(count))

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


def images(transform: str = NONE, seconds: float = 0.0, width: int = WIDTH) -> Task:
    """Return the task that is measured; its test samples have no transform."""
    sizes = {"train": (STEPS * BATCH * REPLICAS, transform), "test": (BATCH, NONE)}
    data = {split: Images(count, of_split, seconds, width) for split, (count, of_split) in sizes.items()}
    return Task("images", partial(_build_net, width), nn.functional.cross_entropy, data=data.__getitem__, batch=BATCH)


def _build_net(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
    )


@dataclass(frozen=True)
class DataSpeed:
    """The speed of one way to train with one transform, by rounds, in samples/s.

    threads: that train, in all of its processes. step_s: of a step without transforms, the median over rounds.
    relative: its speed as a part of that without transforms, by rounds.
    """

    how: str
    threads: int
    transform: str
    step_s: float
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
        """Whether cores are free for our readers: a transform that waits, or fewer threads that train than cores."""
        is_free = self.transform == WAITS or (self.transform == COMPUTES and self.threads < read_cores())
        return is_free and self.how not in PEERS

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None where there is none."""
        return self.ratio >= GOAL if self.has_goal else None


def measure(
    *, rounds: int, width: int = WIDTH, on_progress: Callable[[str], object] = lambda line: None
) -> list[DataSpeed]:
    """Return the speeds; each round trains in every way without transforms and then with each, in turn.

    The transforms cost what a step took without them in the same round, and their speed is compared with the mean of
    those before and after the round, as the speed of a machine changes.
    """
    plain, others = [_train(NONE, 0.0, WAYS, width)], defaultdict[tuple[str, str], list[_Speed]](list)
    for number in range(rounds):
        for found in plain[-1].values():
            on_progress(_describe(number, NONE, found))
        for transform in (WAITS, COMPUTES):
            for how, of_plain in plain[-1].items():
                if how == BARE and transform != WAITS:  # its processes do nothing else
                    continue
                found = _train(transform, of_plain.step_s / BATCH, [how], width)[how]
                others[how, transform].append(found)
                on_progress(_describe(number, transform, found))
        plain.append(_train(NONE, 0.0, WAYS, width))
    by_way = {how: [found[how] for found in plain] for how in WAYS}
    rows = [_compare(NONE, own[:-1], [(one, one) for one in own[:-1]]) for own in by_way.values()]
    return rows + [_compare(kind, own, list(pairwise(by_way[how]))) for (how, kind), own in others.items()]


@dataclass(frozen=True)
class _Speed:
    how: str
    replicas: int
    threads: int
    samples_per_s: float

    @property
    def step_s(self) -> float:
        return BATCH * self.replicas / self.samples_per_s


def _train(transform: str, seconds: float, ways: Sequence[str], width: int) -> dict[str, _Speed]:
    """Return the speed of each of these ways, and of those that come with them. seconds: of the transform of a sample.

    One process is the baseline of a run by replicas, so these come with it.
    """
    name = f"{__name__}:images(transform={transform!r},seconds={seconds!r},width={width})"
    found = dict[str, _Speed]()
    replicas = {ALONE: 1, TOGETHER: REPLICAS}
    if ours := [how for how in replicas if how in ways or ALONE in ways]:
        with tempfile.TemporaryDirectory(prefix="cutset-data-") as folder:
            method, out = parse_method("downpour"), Path(folder) / "run"
            config = RunConfig(
                name,
                method=method,
                replicas=REPLICAS,
                optimizer="sgd",
                epochs=1,
                lr=LR,
                out=out,
                baseline=ALONE in ours,
            )
            rows = run(prepare(config))["rows"]
        for how, row in zip(ours, rows, strict=True):
            count = replicas[how]
            found[how] = _Speed(how, count, count * int(row["threads"]), float(row["samples_per_s"]))
    if TORCH in ways:
        cores = read_cores()
        speed = measure_loader(TaskSpec(name), workers=cores, threads=cores, lr=LR)
        found[TORCH] = _Speed(TORCH, 1, cores, speed)
    if BARE in ways:
        cores, plain = read_cores(), f"{__name__}:images(width={width})"
        speed = measure_bare_waits(TaskSpec(plain), seconds, processes=cores, threads=cores, lr=LR)
        found[BARE] = _Speed(BARE, 1, cores, speed)
    return found


def _describe(number: int, transform: str, found: _Speed) -> str:
    return f"round {number + 1}: {found.how}, {transform}: {found.samples_per_s:.0f} samples/s"


def _compare(transform: str, own: Sequence[_Speed], plain: Sequence[tuple[_Speed, _Speed]]) -> DataSpeed:
    """Compare the speed of each round. plain: those without transforms, before and after it."""
    speeds = [one.samples_per_s for one in own]
    around = [statistics.mean(one.samples_per_s for one in both) for both in plain]
    relative = [speed / other for speed, other in zip(speeds, around, strict=True)]
    step_s = statistics.median(before.step_s for before, _ in plain)
    return DataSpeed(own[0].how, own[0].threads, transform, step_s, speeds, relative)


def tabulate(found: Sequence[DataSpeed]) -> BenchTable[DataSpeed]:
    """Return the table of the speeds."""
    columns: list[Column[DataSpeed]] = [
        Column("training", "how", align="left"),
        Column("transform", "transform", align="left"),
        Column("step", "step_s", format=lambda seconds: f"{1000 * seconds:.1f} ms"),
        Column("samples/s", "samples_per_s", format="{:.0f}".format),
        Column("of that without", "ratio", format="{:.2f}".format),
        Column("goal", "reached", format=lambda reached: f"{GOAL}: {'reached' if reached else 'missed'}"),
    ]
    cores, load = read_cores(), os.getloadavg()[0]
    notes = (
        f"The transforms of a batch of {BATCH} cost as much as a step without them in that round; {cores} cores here.",
        "The goal is for cores that are free: a transform that waits, or fewer threads that train than cores.",
        f"{TORCH}: a plain loop over a DataLoader with as many processes as cores, which computes with all cores.",
        f"{BARE}: steps of one batch beside as many processes that only wait, so its steps and waits are shorter.",
        f"Load average of this machine at the end: {load:.1f}; above the processes of the benchmark, no core was free.",
    )
    return BenchTable(columns, found, notes=notes, facts={"cores": cores, "load": load})
