"""The processes of a run: what a worker, a shard and the one-process baseline do from their set-up to their result."""

from typing import Any

import msgspec

from ..models.stream import SampleStream
from ..partition.errors import Diverged
from ..ps.holding import finite
from ..ps.keeper import Keeper
from ..ps.lazy import apply_lazily
from ..ps.rule import Update
from ..ps.shard import Shard
from ..ps.shard_file import read_shard
from ..ps.shard_loop import serve
from ..ps.share import demand_finite
from ..runtime.assignment import LAUNCHER
from ..runtime.beacon import Beacon
from ..runtime.channel import Channel
from ..runtime.message import Message
from .course import BaselineSetup, ShardSetup, WorkerSetup
from .load import load_task, read_split
from .trainer import UncutTrainer, accuracy
from .training import Training
from .training_log import TrainingLog
from .turns import PATIENCE_S

WORKER, SHARD, BASELINE = (f"cutset.tools.roles:{name}" for name in ("worker", "shard", "baseline"))


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
