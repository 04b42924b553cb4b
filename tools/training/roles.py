"""The processes of a run: what a worker, a shard and the one-process baseline do from their setup to their result."""

from pathlib import Path
from typing import Any

import msgspec

from ...errors import Diverged
from ...ps.checkpoint.journal import Journal
from ...ps.checkpoint.shard_file import read_shard
from ...ps.methods.training_loop import demand_finite_loss
from ...ps.optimizers.optimizer import Update
from ...ps.optimizers.sparse_update import apply_lazily
from ...ps.server.serve_loop import serve
from ...ps.server.shard import Shard
from ...ps.slices.slice_state import is_finite
from ...runtime.channel.channel import Channel
from ...runtime.channel.message import LAUNCHER, Message
from ...runtime.hosts.heartbeat import RoleProgress
from ..job.process_specs import BaselineSpec, ShardSpec, WorkerSpec
from ..leases.batch_assignment import REPLICA_TIMEOUT_S, RoundRobinBatches
from ..leases.batch_reader import make_reader
from ..task.load_task import load_task, read_split, read_training
from .progress_log import ProgressLog
from .trainer import UncutTrainer
from .worker_process import WorkerProcess

WORKER, SHARD, BASELINE = (f"{__name__}:{name}" for name in ("run_worker", "run_shard", "run_baseline"))


def run_worker(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Train one machine's part of one replica; replica 0 also evaluates, and writes what the shards do not have."""
    return WorkerProcess(channel, msgspec.convert(setup, WorkerSpec), progress).run()


def run_shard(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Serve one shard until the launcher tells it to finish. A restarted shard continues from a file."""
    spec = msgspec.convert(setup, ShardSpec)
    journal = Journal(spec.journal_config, spec.index)
    restored, clocks = [], None
    folder = Path(spec.journal_config.folder)
    if spec.restore_from and (folder / spec.restore_from).exists():
        saved = read_shard(folder / spec.restore_from)
        restored, clocks = saved.slice_states, saved.clocks
        if spec.steps is not None:
            clocks = {number: dict.fromkeys(range(spec.serving.replicas), spec.steps) for number in clocks}
        journal.restore_from(restored)
    shard = Shard(
        spec.index,
        spec.slices,
        spec.serving,
        journal=journal,
        restored=restored,
        clocks=clocks,
        copy=channel.copy,
    )
    if spec.incarnation:
        channel.send(LAUNCHER, Message("serving"))
    return serve(shard, channel, folder=folder, progress=progress, timeout_s=REPLICA_TIMEOUT_S)


def run_baseline(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Train the whole model in this process on the samples of all replicas, one batch after the other."""
    spec = msgspec.convert(setup, BaselineSpec)
    training, optimizer = spec.training, spec.optimizer
    task = load_task(training.task)
    samples, tests = read_training(task, seed=training.seed, parts=training.parts or None), read_split(task, "test")
    trainer = UncutTrainer(training, task, training.seed)
    state, gradient = optimizer.init_state(trainer.values), trainer.gradient
    log, reader = (
        ProgressLog(channel, progress, training),
        make_reader(training, samples, RoundRobinBatches(training), 0),
    )
    step = 0
    while (batch := reader.read(step)) is not None:
        loss = trainer.step(batch, step)
        demand_finite_loss(channel.name, step, loss)
        if training.clip_norm:
            trainer.clip(training.clip_norm, step)
        apply_lazily(optimizer, trainer.values, gradient, state, Update(step + 1, progress=step / training.steps))
        gradient.zero()
        log.record_step(step, loss)
        if log.is_evaluation_due():
            log.record_evaluation(step, lambda: trainer.score(task, tests, training.batch))
        step += 1
    reader.close()
    seconds = log.training_seconds()
    if not is_finite(trainer.values):
        raise Diverged("E703", f"the parameters are not finite after step {step - 1}", fix="a smaller --lr")
    log.record_evaluation(step - 1, lambda: trainer.score(task, tests, training.batch))
    return {"seconds": seconds, "losses": log.losses, "curve": log.curve}
