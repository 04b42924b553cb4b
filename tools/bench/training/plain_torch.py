"""What the methods are compared with, in plain torch and as torch documents it: one process, DDP on gloo, Hogwild.

All take the same samples in the same order. The clock starts once every process is warm, and stands still during tests.
"""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ....models.sample_stream import SampleStream
from ....models.task import Data, Task
from ....runtime.launcher.heartbeat import Beacon
from ....runtime.channel.channel import Channel
from ...task.load_task import TaskSpec, build_model, load_task, read_split

ALONE, DDP, HOGWILD = (f"cutset.tools.bench.training.plain_torch:{name}" for name in ("alone", "parallel", "hogwild"))
PROCESSES = 2
TEST_BATCH = 1000
PATIENCE_S = 120.0


class Plain(msgspec.Struct, frozen=True):
    """One process of plain torch, which trains by SGD.

    batch, steps: of all processes together. every: steps between two tests, 0 for one test at the end. store: a file by
    which the processes of DDP find each other; rank: which of them it is.
    """

    spec: TaskSpec
    lr: float
    batch: int
    steps: int
    every: int = 0
    seed: int = 0
    rank: int = 0
    store: str = ""


class Trained(msgspec.Struct, frozen=True):
    """What came of it. seconds: without tests; curve: samples and test accuracy."""

    seconds: float
    samples: int
    curve: list[tuple[int, float]]


def alone(channel: Channel, setup: Any, beacon: Beacon) -> Any:
    """One process, with the threads of its role."""
    given = msgspec.convert(setup, Plain)
    loop = _Loop(given, load_task(given.spec), beacon)
    return msgspec.to_builtins(loop.train(build_model(loop.task, seed=given.seed), range(given.steps)))


def parallel(channel: Channel, setup: Any, beacon: Beacon) -> Any:
    """One of the processes of DistributedDataParallel, each with its part of every batch."""
    given = msgspec.convert(setup, Plain)
    loop = _Loop(given, load_task(given.spec), beacon)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(given.store, PROCESSES)  # type: ignore[attr-defined]
    timeout = timedelta(seconds=PATIENCE_S)
    dist.init_process_group("gloo", store=store, rank=given.rank, world_size=PROCESSES, timeout=timeout)
    try:
        model = DistributedDataParallel(build_model(loop.task, seed=given.seed))
        part = slice(given.rank, None, PROCESSES)
        return msgspec.to_builtins(loop.train(model, range(given.steps), part=part))
    finally:
        dist.destroy_process_group()


def hogwild(channel: Channel, setup: Any, beacon: Beacon) -> Any:
    """Processes that train one model in shared memory without locks, as torch's example `mnist_hogwild` does."""
    given = msgspec.convert(setup, Plain)
    beacon.progress = None  # the processes below take the steps
    task = load_task(given.spec)
    model = build_model(task, seed=given.seed)
    model.share_memory()
    tests = given.steps // given.every if given.every else 0
    seconds, curve = _shared(PROCESSES), _shared(tests + 1, 2)
    context = mp.get_context("spawn")
    ready, plain = context.Barrier(PROCESSES), msgspec.json.encode(given)
    processes = [
        context.Process(target=_hog, args=(model, plain, rank, ready, seconds, curve), daemon=True)
        for rank in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    failed = [process.exitcode for process in processes if process.exitcode != 0]
    if failed:
        raise RuntimeError(f"a process of torch's Hogwild ended with {failed[0]}")
    points = [(int(samples), float(right)) for samples, right in curve.tolist() if samples]
    points[-1] = (given.steps * given.batch, accuracy(model, task, read_split(task, "test")))  # once both have ended
    return msgspec.to_builtins(Trained(float(seconds.max()), given.steps * given.batch, points))


def _shared(*shape: int) -> Tensor:
    """Zeros that other processes see."""
    zeros = torch.zeros(shape)
    zeros.share_memory_()  # type: ignore[no-untyped-call]
    return zeros


def _hog(model: nn.Module, plain: bytes, rank: int, ready: Any, seconds: Tensor, curve: Tensor) -> None:
    """One of those processes: every second batch. It says its seconds and, if it is the first, its tests."""
    torch.set_num_threads(1)
    given = msgspec.structs.replace(msgspec.json.decode(plain, type=Plain), rank=rank)
    loop = _Loop(given, load_task(given.spec), Beacon())
    trained = loop.train(model, range(rank, given.steps, PROCESSES), ready=lambda: ready.wait(PATIENCE_S))
    seconds[rank] = trained.seconds
    for i, point in enumerate(trained.curve):
        curve[i] = torch.tensor(point)


class _Loop:
    """The loop of torch's examples, and the samples for it. Only rank 0 tests."""

    def __init__(self, given: Plain, task: Task, beacon: Beacon) -> None:
        self.given, self.task, self.beacon = given, task, beacon
        self.samples = read_split(task, "train")
        self.tests = read_split(task, "test") if given.rank == 0 else None
        self.stream = SampleStream(len(self.samples), batch=given.batch, seed=given.seed)

    def train(
        self,
        model: nn.Module,
        numbers: range,
        *,
        part: slice = slice(None),
        ready: Callable[[], object] = lambda: None,
    ) -> Trained:
        """numbers: of the batches; part: of each that is ours. ready: waits for the other processes."""
        optimizer = torch.optim.SGD(model.parameters(), lr=self.given.lr)
        self._gradient(model, numbers[0], part)  # the first is slow
        ready()
        curve: list[tuple[int, float]] = []
        began, testing_s = time.perf_counter(), 0.0
        for number in numbers:
            optimizer.zero_grad()
            self._gradient(model, number, part)
            optimizer.step()
            self.beacon.progress = number
            done = number + numbers.step  # by all processes
            if self._due(done):
                start = time.perf_counter()
                curve.append(self._point(model, done))
                testing_s += time.perf_counter() - start
        seconds = time.perf_counter() - began - testing_s
        if self.tests is not None:
            curve.append(self._point(model, self.given.steps))
        return Trained(seconds, self.given.steps * self.given.batch, curve)

    def _gradient(self, model: nn.Module, number: int, part: slice) -> None:
        rows = self.samples.rows(self.stream.indices(number)[part])
        self.task.loss(model(*rows.inputs), *rows.targets).backward()  # type: ignore[no-untyped-call]

    def _due(self, done: int) -> bool:
        every = self.given.every
        return self.tests is not None and every > 0 and done % every == 0 and done < self.given.steps

    def _point(self, model: nn.Module, done: int) -> tuple[int, float]:
        assert self.tests is not None
        whole = model.module if isinstance(model, DistributedDataParallel) else model
        return done * self.given.batch, accuracy(whole, self.task, self.tests)


@torch.no_grad()
def accuracy(model: nn.Module, task: Task, tests: Data) -> float:
    """The share of right answers, in evaluation mode."""
    model.eval()
    parts = (tests.rows(indices) for indices in torch.split(torch.arange(len(tests)), TEST_BATCH))
    right = sum(task.correct(model(*part.inputs), *part.targets) for part in parts)
    model.train()
    return right / len(tests)
