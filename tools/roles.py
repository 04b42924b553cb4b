"""The processes of a run: what a worker, a shard and the one-process baseline do from their set-up to their result."""

from pathlib import Path
from typing import Any

import msgspec
import torch

from ..models.stream import SampleStream
from ..models.task import Data, Task
from ..partition.errors import Diverged
from ..ps.checkpoint_files import write_state
from ..ps.client import Client
from ..ps.holding import finite
from ..ps.rule import Update
from ..ps.shard import Shard, serve
from ..ps.share import Share, demand_finite
from ..runtime.assignment import LAUNCHER
from ..runtime.beacon import Beacon
from ..runtime.channel import Channel
from ..runtime.mailbox import Mailbox
from ..runtime.message import Message
from .buffer_file import BufferFile, buffer_path
from .course import BaselineSetup, ShardSetup, WorkerSetup
from .load import load_task, read_split
from .trainer import CutTrainer, Trainer, UncutTrainer, accuracy
from .training_log import TrainingLog

WORKER, SHARD, BASELINE = (f"cutset.tools.roles:{name}" for name in ("worker", "shard", "baseline"))
WAIT_S = 600.0  # for a message of a peer; the launcher finds a dead or hanging one long before
PATIENCE_S = 7 * 24 * 3600.0  # for other replicas to end their share


def worker(channel: Channel, setup: Any, beacon: Beacon) -> dict[str, Any]:
    """Train one machine's part of one replica; replica 0 also tests, and sends what the shards do not have."""
    given = msgspec.convert(setup, WorkerSetup)
    course = given.course
    task = load_task(course.spec)
    samples = read_split(task, "train")
    tests = read_split(task, "test") if given.replica == 0 else None
    mailbox = Mailbox(channel, timeout_s=WAIT_S)
    trainer = _trainer(given, task, mailbox)
    rate = given.method.local_rate(given.rule)
    client = Client(mailbox, given.slices, trainer.values, local_rate=rate, replica=given.replica)
    if given.replica == 0:
        client.put()
    stream = SampleStream(len(samples), batch=course.batch, seed=course.seed)
    _warm_up()
    log = TrainingLog(channel, beacon, course, lambda: mailbox.waited_s)
    place = buffer_path(Path(course.initial).parent, given.replica, given.machine)
    memory = BufferFile(trainer.buffers(), place, again=given.times > 0)

    def after(step: int, loss: float | None, count: int) -> None:
        log.step(step, loss)
        memory.keep()
        if tests is not None and log.due(step):
            log.test(step, lambda: accuracy(trainer, task, tests, course.micro_batch))

    def batch(step: int) -> Data | None:
        """The replicas take turns."""
        number = given.replica + step * course.replicas
        return samples.rows(stream.indices(number)) if step < course.steps else None

    share = Share(
        trainer,
        client,
        given.rule,
        batch,
        replicas=course.replicas,
        first=given.first,
        clip=(lambda step: trainer.clip(course.clip_norm, step)) if course.clip_norm else None,
        agree=trainer.agree,
        report=after,
    )
    given.method.train(share)
    seconds, traffic = log.seconds(), log.traffic()
    memory.keep(now=True)
    if tests is not None:
        _finish(channel, mailbox, client, trainer, log, task, tests, given.machine)
    return {
        "seconds": seconds,
        "steps": course.steps - given.first,
        "step_s": log.step_s(),
        "client": client.statistics(),
        "links": traffic,
        "spans": trainer.worker.trace.whole() if isinstance(trainer, CutTrainer) else [],
    }


def _trainer(given: WorkerSetup, task: Task, mailbox: Mailbox) -> Trainer:
    if given.program:
        return CutTrainer(given, task, mailbox)
    return UncutTrainer(given.course, task, given.course.seed + given.replica)


def _finish(
    channel: Channel,
    mailbox: Mailbox,
    client: Client,
    trainer: Trainer,
    log: TrainingLog,
    task: Task,
    tests: Data,
    machine: int,
) -> None:
    """When all replicas have pushed their last, test the parameters that the shards hold, and save what they lack."""
    channel.send(LAUNCHER, Message("trained"))
    log.beacon.progress = None  # the others may take long; this is not being stuck
    told = mailbox.wait([(LAUNCHER, "all trained", 0, 0, 0)], timeout_s=PATIENCE_S)
    client.fetch()
    client.wait()
    log.test(log.course.steps - 1, lambda: accuracy(trainer, task, tests, log.course.micro_batch))
    file = write_state(told.body["path"], machine, trainer.state())
    channel.send(LAUNCHER, Message("state", body={"file": msgspec.to_builtins(file)}))


def shard(channel: Channel, setup: Any, beacon: Beacon) -> dict[str, Any]:
    """Serve one shard until the launcher says finish."""
    given = msgspec.convert(setup, ShardSetup)
    return serve(Shard(given.index, given.slices, given.serving), channel, beacon=beacon, timeout_s=PATIENCE_S)


def baseline(channel: Channel, setup: Any, beacon: Beacon) -> dict[str, Any]:
    """Train the whole model in this process with the samples of all replicas, one batch after the other."""
    given = msgspec.convert(setup, BaselineSetup)
    course = given.course
    task = load_task(course.spec)
    samples, tests = read_split(task, "train"), read_split(task, "test")
    trainer = UncutTrainer(course, task, course.seed)
    state = given.rule.state(trainer.values)
    stream = SampleStream(len(samples), batch=course.batch, seed=course.seed)
    log = TrainingLog(channel, beacon, course)
    for step in range(course.steps):
        loss = trainer.step(samples.rows(stream.indices(step)), step)
        demand_finite(channel.name, step, loss)
        if course.clip_norm:
            trainer.clip(course.clip_norm, step)
        given.rule.apply(trainer.values, trainer.gradients, state, Update(step + 1))
        trainer.gradients.zero_()
        log.step(step, loss)
        if log.due(step):
            log.test(step, lambda: accuracy(trainer, task, tests, course.batch))
    seconds = log.seconds()
    if not finite(trainer.values):
        raise Diverged("E703", f"the parameters are not finite after step {course.steps - 1}", fix="a smaller --lr")
    log.test(course.steps - 1, lambda: accuracy(trainer, task, tests, course.batch))
    return {"seconds": seconds, "losses": log.losses, "curve": log.curve}


def _warm_up() -> None:
    """The first backward from given gradients makes torch import for half a second: not on the clock of the run."""
    value = torch.zeros(1, requires_grad=True)
    torch.autograd.backward([value * 1], [torch.ones(1)])
