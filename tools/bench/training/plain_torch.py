"""Plain torch, with which methods are compared, as torch documents it: one process, DDP on gloo, and Hogwild.

All take the same samples in the same order. The clock starts once every process is warm, and stops during tests.
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
from ....models.task import Task
from ....runtime.channel.channel import Channel
from ....runtime.hosts.heartbeat import RoleProgress
from ...samples.dataset_samples import Samples
from ...samples.read_samples import read_split
from ...task.load_task import TaskSpec, build_model, load_task

ALONE, DDP, HOGWILD = (
    f"cutset.tools.bench.training.plain_torch:{name}" for name in ("train_alone", "train_in_parallel", "train_hogwild")
)
PROCESSES = 2
TEST_BATCH = 1000
TIMEOUT_S = 120.0


class TorchSetup(msgspec.Struct, frozen=True):
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


class TorchResult(msgspec.Struct, frozen=True):
    """What a training came to. seconds: without tests; curve: samples and test accuracy."""

    seconds: float
    samples: int
    curve: list[tuple[int, float]]


def train_alone(channel: Channel, setup: Any, progress: RoleProgress) -> Any:
    """Train in one process, with the threads of its role."""
    config = msgspec.convert(setup, TorchSetup)
    loop = _TorchLoop(config, load_task(config.spec), progress)
    return msgspec.to_builtins(loop.train(build_model(loop.task, seed=config.seed), range(config.steps)))


def train_in_parallel(channel: Channel, setup: Any, progress: RoleProgress) -> Any:
    """Run one of the processes of DistributedDataParallel, each with its part of every batch."""
    config = msgspec.convert(setup, TorchSetup)
    loop = _TorchLoop(config, load_task(config.spec), progress)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(config.store, PROCESSES)  # type: ignore[attr-defined]
    timeout = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group("gloo", store=store, rank=config.rank, world_size=PROCESSES, timeout=timeout)
    try:
        model = DistributedDataParallel(build_model(loop.task, seed=config.seed))
        part = slice(config.rank, None, PROCESSES)
        return msgspec.to_builtins(loop.train(model, range(config.steps), part=part))
    finally:
        dist.destroy_process_group()


def train_hogwild(channel: Channel, setup: Any, progress: RoleProgress) -> Any:
    """Train one model in shared memory by several processes without locks, as torch's example `mnist_hogwild` does."""
    config = msgspec.convert(setup, TorchSetup)
    progress.value = None  # the processes below take the steps
    task = load_task(config.spec)
    model = build_model(task, seed=config.seed)
    model.share_memory()
    tests = config.steps // config.every if config.every else 0
    seconds, curve = _make_shared(PROCESSES), _make_shared(tests + 1, 2)
    context = mp.get_context("spawn")
    ready, encoded = context.Barrier(PROCESSES), msgspec.json.encode(config)
    processes = [
        context.Process(target=_train_hog, args=(model, encoded, rank, ready, seconds, curve), daemon=True)
        for rank in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    failed = [process.exitcode for process in processes if process.exitcode != 0]
    if failed:
        raise RuntimeError(f"a process of torch's Hogwild ended with {failed[0]}")
    points = [(int(samples), float(accuracy)) for samples, accuracy in curve.tolist() if samples]
    samples = config.steps * config.batch
    points[-1] = (samples, measure_accuracy(model, task, read_split(task, "test")))  # once both processes have ended
    return msgspec.to_builtins(TorchResult(float(seconds.max()), samples, points))


def _make_shared(*shape: int) -> Tensor:
    """Return zeros in memory that other processes see."""
    zeros = torch.zeros(shape)
    zeros.share_memory_()  # type: ignore[no-untyped-call]
    return zeros


def _train_hog(model: nn.Module, encoded: bytes, rank: int, ready: Any, seconds: Tensor, curve: Tensor) -> None:
    """Run one of Hogwild's processes, on every second batch; the first one also writes down its tests."""
    torch.set_num_threads(1)
    config = msgspec.structs.replace(msgspec.json.decode(encoded, type=TorchSetup), rank=rank)
    loop = _TorchLoop(config, load_task(config.spec), RoleProgress())
    result = loop.train(model, range(rank, config.steps, PROCESSES), ready=lambda: ready.wait(TIMEOUT_S))
    seconds[rank] = result.seconds
    for i, point in enumerate(result.curve):
        curve[i] = torch.tensor(point)


class _TorchLoop:
    """The loop of torch's examples, and the samples for it. Only rank 0 tests."""

    def __init__(self, config: TorchSetup, task: Task, progress: RoleProgress) -> None:
        self.config, self.task, self.progress = config, task, progress
        self.samples = read_split(task, "train")
        self.tests = read_split(task, "test") if config.rank == 0 else None
        self.stream = SampleStream(len(self.samples), batch=config.batch, seed=config.seed)

    def train(
        self,
        model: nn.Module,
        numbers: range,
        *,
        part: slice = slice(None),
        ready: Callable[[], object] = lambda: None,
    ) -> TorchResult:
        """numbers: of the batches; part: of each that is ours. ready: waits for the other processes."""
        optimizer = torch.optim.SGD(model.parameters(), lr=self.config.lr)
        self._gradient(model, numbers[0], part)  # the first is slow
        ready()
        curve: list[tuple[int, float]] = []
        began, testing_s = time.perf_counter(), 0.0
        for number in numbers:
            optimizer.zero_grad()
            self._gradient(model, number, part)
            optimizer.step()
            self.progress.value = number
            done = number + numbers.step  # by all processes
            if self._due(done):
                start = time.perf_counter()
                curve.append(self._point(model, done))
                testing_s += time.perf_counter() - start
        seconds = time.perf_counter() - began - testing_s
        if self.tests is not None:
            curve.append(self._point(model, self.config.steps))
        return TorchResult(seconds, self.config.steps * self.config.batch, curve)

    def _gradient(self, model: nn.Module, number: int, part: slice) -> None:
        rows = self.samples.rows(self.stream.indices(number)[part])
        self.task.loss(rows.call(model), *rows.targets).backward()  # type: ignore[no-untyped-call]

    def _due(self, done: int) -> bool:
        every = self.config.every
        return self.tests is not None and every > 0 and done % every == 0 and done < self.config.steps

    def _point(self, model: nn.Module, done: int) -> tuple[int, float]:
        assert self.tests is not None
        whole = model.module if isinstance(model, DistributedDataParallel) else model
        return done * self.config.batch, measure_accuracy(whole, self.task, self.tests)


@torch.no_grad()
def measure_accuracy(model: nn.Module, task: Task, tests: Samples) -> float:
    """The share of right answers, in evaluation mode."""
    model.eval()
    parts = (tests.rows(indices) for indices in torch.split(torch.arange(len(tests)), TEST_BATCH))
    assert task.correct is not None  # that of a bundled task
    right = sum(task.correct(part.call(model), *part.targets) for part in parts)
    model.train()
    return right / len(tests)
