"""A loop of plain torch over a `DataLoader`, as torch documents it: what `cutset bench data` compares with."""

import time
import uuid
from typing import Any, cast

import msgspec
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

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
    model = build_model(task, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    began = time.perf_counter()
    for step, (inputs, targets) in enumerate(loader):
        if step == WARM_UP:
            began = time.perf_counter()
        optimizer.zero_grad()
        task.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        progress.value = step
    return (len(loader) - WARM_UP) * task.batch / (time.perf_counter() - began)


def measure_loader(spec: TaskSpec, *, workers: int, threads: int, lr: float) -> float:
    """Return the samples/s of such a loop in a process of its own, with so many threads for the model."""
    setup = LoaderSetup(spec, workers, lr)
    role = Role("torch", LOADER_ENTRY, msgspec.to_builtins(setup), threads=threads)
    with Launcher([role], job=f"loader-{uuid.uuid4().hex[:12]}") as launcher:
        [samples_per_s] = launcher.run()
    return float(samples_per_s)
