"""The processes of a run: what a worker, a shard and the one-process baseline do from their set-up to their result."""

from typing import Any

import msgspec

from ...models.sample_stream import SampleStream
from ...errors import Diverged
from ...ps.slices.slice_state import finite
from ...ps.checkpoint.journal import Keeper
from ...ps.optimizers.sparse_update import apply_lazily
from ...ps.optimizers.optimizer import Update
from ...ps.server.shard import Shard
from ...ps.checkpoint.shard_file import read_shard
from ...ps.server.serve_loop import serve
from ...ps.methods.training_loop import demand_finite
from ...runtime.launcher.assignment import LAUNCHER
from ...runtime.launcher.heartbeat import Beacon
from ...runtime.channel.channel import Channel
from ...runtime.channel.message import Message
from ..job.run_config import BaselineSetup, ShardSetup, WorkerSetup
from ..task.load_task import load_task, read_split
from .trainer import UncutTrainer, accuracy
from .worker_process import Training
from .progress_log import TrainingLog
from .batch_assignment import PATIENCE_S

WORKER, SHARD, BASELINE = (f"cutset.tools.training.roles:{name}" for name in ("worker", "shard", "baseline"))


def worker(channel: Channel, setup: Any, beacon: Beacon) -> dict[str, Any]:
    """Train one machine's part of one replica; replica 0 also tests, and sends what the shards do not have."""
    return Training(channel, msgspec.convert(setup, WorkerSetup), beacon).run()


def shard(channel: Channel, setup: Any, beacon: Beacon) -> dict[str, Any]:
    """Serve one shard until the launcher says finish. One that was started again goes on from its journal."""
    given = msgspec.convert(setup, ShardSetup)
    keeper = Keeper(given.keeping, given.index)
    journal = read_shard(keeper.path) if given.times and keeper.path.exists() else None
    held, clocks = ([], None) if journal is None else (journal.holdings, journal.clocks)
    if journal is not None:
        keeper.goes_on_from(held)
    served = Shard(given.index, given.slices, given.serving, keeper=keeper, held=held, clocks=clocks, copy=channel.copy)
    if given.times:
        channel.send(LAUNCHER, Message("serving"))
    return serve(served, channel, beacon=beacon, timeout_s=PATIENCE_S)


def baseline(channel: Channel, setup: Any, beacon: Beacon) -> dict[str, Any]:
    """Train the whole model in this process with the samples of all replicas, one batch after the other."""
    given = msgspec.convert(setup, BaselineSetup)
    course = given.course
    task = load_task(course.spec)
    samples, tests = read_split(task, "train"), read_split(task, "test")
    trainer = UncutTrainer(course, task, course.seed)
    state, gradient = given.rule.state(trainer.values), trainer.gradient
    stream = SampleStream(len(samples), batch=course.batch, seed=course.seed)
    log = TrainingLog(channel, beacon, course)
    for step in range(course.steps):
        loss = trainer.step(samples.rows(stream.indices(step)), step)
        demand_finite(channel.name, step, loss)
        if course.clip_norm:
            trainer.clip(course.clip_norm, step)
        apply_lazily(given.rule, trainer.values, gradient, state, Update(step + 1))
        gradient.zero()
        log.step(step, loss)
        if log.due():
            log.test(step, lambda: accuracy(trainer, task, tests, course.batch))
    seconds = log.seconds()
    if not finite(trainer.values):
        raise Diverged("E703", f"the parameters are not finite after step {course.steps - 1}", fix="a smaller --lr")
    log.test(course.steps - 1, lambda: accuracy(trainer, task, tests, course.batch))
    return {"seconds": seconds, "losses": log.losses, "curve": log.curve}
