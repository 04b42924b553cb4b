"""The processes of a run by a batch method: coordinator, shards and workers, and torch's L-BFGS beside them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from ...models.sample_stream import SampleStream
from ...models.task import Data
from ...ps.sandblaster.coordinator import BatchCoordinator
from ...ps.sandblaster.gradient_worker import BatchWorker
from ...ps.checkpoint.write_checkpoint import write_state
from ...ps.sandblaster.coordinator_loop import coordinate
from ...ps.slices.slicing import Slice
from ...ps.sandblaster.solver import Portions
from ...ps.sandblaster.recovery_log import OperationLog
from ...ps.slices.region import Region
from ...ps.methods.sandblaster import Sandblaster
from ...ps.server.serve_loop import serve
from ...ps.checkpoint.streamed_safetensors import TensorReader
from ...ps.sandblaster.vector_shard import VectorShard, from_whole
from ...runtime.launcher.assignment import LAUNCHER
from ...runtime.launcher.heartbeat import Beacon
from ...runtime.channel.channel import Channel
from ...runtime.channel.mailbox import Mailbox
from ...runtime.channel.message import Message
from ..job.run_config import Course, WorkerSetup, worker_name
from ..task.load_task import load_task, read_split
from ..training.trainer import CutTrainer, Trainer, UncutTrainer, accuracy
from ..training.batch_assignment import PATIENCE_S

COORDINATOR, SHARD, WORKER, BASELINE = (
    f"cutset.tools.sandblaster.roles:{name}" for name in ("coordinator", "shard", "worker", "baseline")
)
LOG = "operations.jsonl"


class CoordinatorSetup(msgspec.Struct, frozen=True):
    """folder: of the log and of the shards' commits. run: what must be so again for a log to be of use."""

    method: Sandblaster
    samples: int
    portion: int
    shards: list[str]
    replicas: int
    machines: int
    folder: str
    run: dict[str, Any]


class ShardSetup(msgspec.Struct, frozen=True):
    """regions: of each machine's parameters, whose first values are in file `initial`."""

    index: int
    slices: list[Slice]
    regions: list[list[Region]]
    samples: int
    portion: int
    initial: str
    folder: str


class MemberSetup(msgspec.Struct, frozen=True):
    """A worker. samples: of which its portions are made."""

    worker: WorkerSetup
    samples: int


class TorchSetup(msgspec.Struct, frozen=True):
    """torch.optim.LBFGS on the same samples. evaluations: at most, and iterations, as the other run has made."""

    course: Course
    method: Sandblaster
    samples: int
    evaluations: int


def coordinator(channel: Channel, setup: Any, beacon: Beacon) -> dict[str, Any]:
    """Drive the method until the launcher says finish."""
    given = msgspec.convert(setup, CoordinatorSetup)
    portions = Portions(given.samples, given.portion)
    log = OperationLog(Path(given.folder) / LOG, given.run)
    made = BatchCoordinator(
        given.method.steps(portions), portions, log, given.shards, replicas=given.replicas, machines=given.machines
    )
    channel.send(LAUNCHER, Message("serving"))
    try:
        return coordinate(made, channel, beacon)
    finally:
        log.close()


def shard(channel: Channel, setup: Any, beacon: Beacon) -> dict[str, Any]:
    """Serve one shard until the launcher says finish."""
    given = msgspec.convert(setup, ShardSetup)
    machines = sorted({piece.machine for piece in given.slices})
    values = {machine: first_values(given.initial, given.regions[machine]) for machine in machines}
    portions = Portions(given.samples, given.portion)
    made = VectorShard(given.index, given.slices, portions, from_whole(values), Path(given.folder))
    channel.send(LAUNCHER, Message("serving"))
    return serve(made, channel, beacon=beacon, timeout_s=PATIENCE_S)


def worker(channel: Channel, setup: Any, beacon: Beacon) -> dict[str, Any]:
    """Compute portions until the coordinator says that it is over; replica 0 also tests, and sends what shards lack."""
    return _Member(channel, msgspec.convert(setup, MemberSetup), beacon).run()


def baseline(channel: Channel, setup: Any, beacon: Beacon) -> dict[str, Any]:
    """Train the whole model in this process by torch.optim.LBFGS."""
    return _torch(channel, msgspec.convert(setup, TorchSetup), beacon)


class _Member:
    """One machine's part of one replica."""

    def __init__(self, channel: Channel, given: MemberSetup, beacon: Beacon) -> None:
        setup, course = given.worker, given.worker.course
        self._channel, self._given, self._course, self._beacon = channel, setup, course, beacon
        self._task = load_task(course.spec)
        samples = read_split(self._task, "train")
        self._tests = read_split(self._task, "test") if setup.replica == 0 else None
        mailbox = Mailbox(channel, timeout_s=PATIENCE_S)
        channel.send(LAUNCHER, Message("began"))
        self._trainer: Trainer = (
            CutTrainer(setup, self._task, mailbox) if setup.program else UncutTrainer(course, self._task, course.seed)
        )
        names = [worker_name(setup.replica, machine, setup.times) for machine in range(setup.machines)]
        leader = "" if setup.machine == 0 else names[0]
        trainer, portions = self._trainer, Portions(given.samples, course.batch)
        rows = Rows(samples, portions, course.seed)
        self._worker = BatchWorker(
            mailbox,
            setup.slices,
            trainer.values,
            trainer.gradient,
            lambda portion, step: trainer.step(rows.of(portion), step),
            portions,
            coordinator="coordinator",
            leader=leader,
            followers=() if leader else names[1:],
            progress=self._progress,
        )

    def run(self) -> dict[str, Any]:
        """Work to the end; the worker's result."""
        self._worker.run()
        if self._tests is not None:
            self._finish(self._tests)
        work = self._worker
        return {"portions": work.portions_done, "bytes_in": work.bytes_in, "bytes_out": work.bytes_out}

    def _progress(self, done: int | None) -> None:
        self._beacon.progress = None if done is None else f"portion {done}"

    def _finish(self, tests: Data) -> None:
        self._beacon.progress = None  # a test may take long; this is not being stuck
        self._worker.read()
        found = accuracy(self._trainer, self._task, tests, self._course.micro_batch)
        self._channel.send(LAUNCHER, Message("trained", body={"test_accuracy": found}))
        told = self._worker.told("all trained")
        file = write_state(told["path"], self._given.machine, self._trainer.state())
        self._channel.send(LAUNCHER, Message("state", body={"file": msgspec.to_builtins(file)}))


class Rows:
    """The samples of each portion: one permutation of all, drawn from the seed."""

    def __init__(self, samples: Data, portions: Portions, seed: int) -> None:
        self._samples, self._portions = samples, portions
        self._stream = SampleStream(len(samples), batch=portions.size, seed=seed)

    def of(self, portion: int) -> Data:
        """The samples of one."""
        return self._samples.rows(self._stream.indices(portion)[: self._portions.within(portion, portion + 1)])


def first_values(path: str, regions: Sequence[Region]) -> Tensor:
    """A machine's flat parameters [n] as a file of whole tensors has them."""
    with TensorReader(path) as reader:
        dtypes = {reader.layouts[region.name][0] for region in regions}
        values = torch.zeros(max(region.stop for region in regions), dtype=dtypes.pop())
        for region in regions:
            part = values[region.offset : region.stop].view(region.sizes)
            reader.fill(part, region.name, region.axes, tuple(region.box))
    return values


def _torch(channel: Channel, given: TorchSetup, beacon: Beacon) -> dict[str, Any]:
    course, method = given.course, given.method
    task = load_task(course.spec)
    samples, tests = read_split(task, "train"), read_split(task, "test")
    trainer = UncutTrainer(course, task, course.seed)
    portions = Portions(given.samples, course.batch)
    rows, losses = Rows(samples, portions, course.seed), list[float]()
    values = torch.nn.Parameter(trainer.values)  # the same memory

    def evaluate() -> float:
        total, loss = torch.zeros_like(trainer.gradients), 0.0
        for portion in range(portions.count):
            trainer.gradient.zero()
            found, count = trainer.step(rows.of(portion), len(losses)), portions.within(portion, portion + 1)
            assert found is not None
            total.add_(trainer.gradients, alpha=count)
            loss += found * count
            beacon.progress = f"evaluation {len(losses)}, portion {portion}"
        loss = loss / portions.samples + method.l2 / 2 * float(torch.dot(trainer.values, trainer.values))
        values.grad = total.div_(portions.samples).add_(trainer.values, alpha=method.l2)
        losses.append(loss)
        body = {"step": len(losses), "steps": given.evaluations, "loss": loss}
        channel.send(LAUNCHER, Message("progress", body=body))
        return loss

    optimiser = method.by_torch(values, given.evaluations)
    begin = time.monotonic()
    optimiser.step(evaluate)  # type: ignore[no-untyped-call]
    seconds = time.monotonic() - begin
    evaluations, loss = len(losses), evaluate()
    found = accuracy(trainer, task, tests, course.batch)
    return {"seconds": seconds, "evaluations": evaluations, "loss": loss, "test_accuracy": found}
