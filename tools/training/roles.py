"""The processes of a run: what a worker, a shard and the one-process baseline do from their setup to their result."""

from pathlib import Path
from typing import Any

import msgspec

from ...errors import Diverged
from ...ps.checkpoint.journal import Journal
from ...ps.checkpoint.shard_file import read_shard
from ...ps.methods.training_loop import demand_finite_loss
from ...ps.optimizers.optimizer import Update
from ...ps.optimizers.registry import AnyOptimizer
from ...ps.optimizers.sparse_update import apply_lazily
from ...ps.server.serve_loop import serve
from ...ps.server.shard import Shard
from ...ps.slices.region import Region
from ...ps.slices.slice_state import is_finite
from ...runtime.channel.channel import Channel
from ...runtime.channel.message import LAUNCHER, Message
from ...runtime.hosts.heartbeat import RoleProgress
from ..config.group_optimizer import arrange_groups, list_ties
from ..config.parameter_group import Group
from ..job.process_specs import BaselineSpec, ShardSpec, WorkerSpec
from ..leases.batch_assignment import REPLICA_TIMEOUT_S, RoundRobinBatches
from ..leases.batch_reader import make_loader, make_reader
from ..replica.model_part import UncutModelPart
from ..replica.progress_log import ProgressLog
from ..replica.task_worker import TaskWorker
from ..samples.read_samples import read_samples, read_split
from ..scripts.script_role import run_script
from ..task.load_task import load_task

WORKER, SHARD, BASELINE = (f"{__name__}:{name}" for name in ("run_worker", "run_shard", "run_baseline"))


def run_worker(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Train one machine's part of one replica; replica 0 also evaluates, and writes what the shards do not have."""
    spec = msgspec.convert(setup, WorkerSpec)
    return TaskWorker(channel, spec, progress).run() if spec.script is None else run_script(channel, spec, progress)


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


def _arrange_optimizer(spec: BaselineSpec, part: UncutModelPart) -> AnyOptimizer:
    """Return the optimizer of the whole model's parameters, with its groups."""
    groups, offset, regions = [Group.parse(text) for text in spec.groups], 0, []
    for name, parameter in part.worker.parameters.items():
        shape = list(parameter.shape)
        regions.append(Region(name, shape, shape, [(0, n) for n in shape], offset))
        offset += parameter.numel()
    return arrange_groups(spec.optimizer, groups, None, [regions], list_ties(part.worker.model))


def run_baseline(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Train the whole model in this process on the samples of all replicas, one batch after the other.

    It ends early where the score that is monitored says so.
    """
    spec = msgspec.convert(setup, BaselineSpec)
    training = spec.training
    task = load_task(training.task)
    samples = read_samples(task, "train", seed=training.seed, parts=training.parts or None, one_shape=False)
    tests, loader = read_split(task, "test", one_shape=False), make_loader(training, samples)
    model_part = UncutModelPart(training, task, training.seed)
    optimizer = _arrange_optimizer(spec, model_part).of_machine(0)
    state, gradient = optimizer.init_state(model_part.values), model_part.gradient
    log = ProgressLog(channel, progress, training)
    reader, step = make_reader(training, loader, RoundRobinBatches(training), 0), 0
    while (batch := reader.read(step)) is not None:
        loss = model_part.step(batch, step)
        demand_finite_loss(channel.name, step, loss)
        if training.clip_norm:
            model_part.clip(training.clip_norm, step)
        apply_lazily(optimizer, model_part.values, gradient, state, Update(step + 1, progress=step / training.steps))
        gradient.zero()
        log.record_step(step, loss)
        if log.is_evaluation_due():
            log.record_evaluation(step, lambda: model_part.score(task, tests, training.batch))
            if training.monitor is not None and training.monitor.judge(log.curve).must_stop:
                break
        step += 1
    reader.close()
    seconds = log.training_seconds()
    if not is_finite(model_part.values):
        raise Diverged("E703", f"the parameters are not finite after step {log.steps - 1}", fix="a smaller --lr")
    log.record_evaluation(log.steps - 1, lambda: model_part.score(task, tests, training.batch))
    return {"seconds": seconds, "samples": log.steps * training.batch, "losses": log.losses, "curve": log.curve}
