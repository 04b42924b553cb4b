"""A loop of plain torch over a `DataLoader`, as torch documents it: what `cutset bench data` compares with."""

import time
import uuid
from collections.abc import Callable
from typing import Any, cast

import msgspec
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ....models.task import Task
from ....runtime.channel.channel import Channel
from ....runtime.hosts.heartbeat import RoleProgress
from ....runtime.hosts.host import Role
from ....runtime.launcher.launcher import Launcher
from ...task.load_task import TaskSpec, build_model, load_task

LOADER_ENTRY = "cutset.tools.bench.training.plain_loader:train_from_loader"
WARM_UP = 8  # steps before the clock starts: the first batches are not read ahead


class LoaderSetup(msgspec.Struct, frozen=True):
    """workers: processes of the DataLoader. lr: the rate of SGD."""

    spec: TaskSpec
    workers: int
    lr: float


def train_from_loader(channel: Channel, setup: Any, progress: RoleProgress) -> float:
    """Train for one epoch; return samples/s, of whole batches after the first ones."""
    config = msgspec.convert(setup, LoaderSetup)
    task = load_task(config.spec)
    assert task.data is not None
    dataset = cast("Dataset[tuple[Tensor, Tensor]]", task.data("train"))
    loader = DataLoader(dataset, task.batch, shuffle=True, num_workers=config.workers, drop_last=True)
    step, began = make_step(task, config.lr), time.perf_counter()
    for number, (inputs, targets) in enumerate(loader):
        if number == WARM_UP:
            began = time.perf_counter()
        step(inputs, targets)
        progress.value = number
    return (len(loader) - WARM_UP) * task.batch / (time.perf_counter() - began)


def make_step(task: Task, lr: float) -> Callable[[Tensor, Tensor], None]:
    """Build the model of a task; return what trains it by SGD with a batch of inputs and targets."""
    model = build_model(task, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        task.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def measure_loader(spec: TaskSpec, *, workers: int, threads: int, lr: float) -> float:
    """Return the samples/s of such a loop in a process of its own, with so many threads for the model."""
    setup = LoaderSetup(spec, workers, lr)
    return run_loop(LOADER_ENTRY, setup, threads=threads)


def run_loop(entry: str, setup: msgspec.Struct, *, threads: int) -> float:
    """Run an entry of plain torch in a process of its own, with so many threads; return the samples/s it measures."""
    role = Role("torch", entry, msgspec.to_builtins(setup), threads=threads)
    with Launcher([role], job=f"torch-{uuid.uuid4().hex[:12]}") as launcher:
        [samples_per_s] = launcher.run()
    return float(samples_per_s)
