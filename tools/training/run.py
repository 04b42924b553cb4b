"""Run a prepared job by a parameter-server method: roles, checkpoint, a retry where it diverges, and the baseline."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from ...errors import Diverged
from ...ps.checkpoint.journal import remove_journals
from ...ps.checkpoint.write_checkpoint import write_once_there_is_room
from ...ps.optimizers.registry import scale_by_staleness
from ...runtime.hosts.host import Role
from ...runtime.launcher.launcher import Route
from ..config.named_choices import optimizer_of
from ..config.option_values import RETRY_SCALED
from ..hosts.run_hosts import RunHosts
from ..job.divergence import DivergenceRetry
from ..job.export_weights import export_best, write_checkpoint
from ..job.job import Job
from ..job.process_specs import BaselineSpec
from ..job.resume import remove_resumed
from ..job.stream_position import describe_position
from ..leases.scale_requests import ScaleRequests
from ..replica.replica_state import remove_buffers_afterwards
from ..run_folder import CHECKPOINT
from ..run_listener import CheckpointReport, RunListener
from ..unfinished.unfinished_run import complete_if_it_ends_early
from .checkpoint_sets import remove_incomplete
from .roles import BASELINE, WORKER
from .supervision import OnNotice, describe_wait_for_room, run_one_process, run_roles
from .supervisor import TrainingSupervisor


def run_baseline(job: Job, hosts: RunHosts, listener: RunListener) -> dict[str, Any]:
    """Train in one process on the same samples, which are as many steps as all replicas take together.

    It has all cores of its host, as plain torch would.
    """
    training = msgspec.structs.replace(
        hosts.training_on(hosts.first),
        steps=job.training.steps * job.training.replicas,
        evaluate_every=job.training.evaluate_every * job.training.replicas,
        replicas=1,
    )
    base = optimizer_of(job.config.optimizer, job.config.lr, job.config.lr_schedule)
    setup = msgspec.to_builtins(BaselineSpec(training, base, list(map(str, job.config.groups))))
    return run_one_process(job, Role("one-process", BASELINE, setup, threads=hosts.first.cores), hosts, listener)


def run_replicas(
    job: Job, hosts: RunHosts, listener: RunListener, on_notice: OnNotice, route: Route | None
) -> dict[str, Any]:
    """Start shards and workers, train, evaluate at replica 0, write the checkpoint; return what the roles reported.

    The result has the "seconds" of training and the "samples", the results of "workers" and "shards" by name and in
    order, the learning "curve" and the "losses" of replica 0, its "best" weights, the "restarts", and the
    "participation" of the replicas.
    """
    out = job.out
    hosts.prepare_spare_hosts(WORKER)
    with ScaleRequests(out, on_notice=on_notice) as requests:
        supervisor = TrainingSupervisor(job, hosts, listener=listener, on_notice=on_notice, requests=requests)
        remove_journals(out)  # of an earlier run
        remove_incomplete(out)
        with (
            remove_buffers_afterwards(out, replicas=supervisor.max_replicas, machines=job.machines),
            complete_if_it_ends_early(out, on_notice, lambda: describe_position(supervisor.reached[1])),
        ):
            results = run_roles(job, supervisor, hosts, listener, on_notice, route)
        shards = [results[name] for name in supervisor.shards]
        write_once_there_is_room(
            lambda: write_checkpoint(job, shards, supervisor.state_files, *supervisor.reached),
            lambda reason: on_notice(describe_wait_for_room("the launcher", reason)),
        )
        listener.on_checkpoint(CheckpointReport(out / CHECKPOINT, supervisor.reached[0]))
        remove_incomplete(out)
        remove_journals(out)
        remove_resumed(out)
        best = export_best(job)
    return {
        "seconds": max(result["seconds"] for result in supervisor.results.values()),
        "workers": supervisor.results,
        "shards": shards,
        "samples": _count_samples(job, supervisor),
        "curve": supervisor.record.curve,
        "losses": supervisor.record.losses,
        "best": best,
        "restarts": supervisor.restarts,
        "participation": supervisor.participation,
    }


def _count_samples(job: Job, supervisor: TrainingSupervisor) -> int:
    """Return the samples of this run alone, those before it was resumed left out."""
    training, record = job.training, supervisor.record
    step = training.replicas * training.batch
    if not training.is_open_ended:
        return (supervisor.reached[0] - training.start_step) * step
    reached = [int(one["samples"]) for one in record.curve[-1:]]
    reached += [supervisor.reached[0] * step] if job.script is not None else []
    return max([record.samples, *reached]) - training.start_step * step


def run_with_divergence_retry(
    job: Job, train: Callable[[Job], dict[str, Any]], on_notice: OnNotice
) -> tuple[Job, dict[str, Any], DivergenceRetry | None]:
    """Train; if that diverges and the user asked for it, retry once from the first weights with the rate over tau.

    Return the job as it was trained to the end, the outcome, and the retry, if there was one. Dividing the rate by the
    staleness tau helps against the effect of delay; a run that diverges all the same needs a smaller rate.
    """
    try:
        return job, train(job), None
    except Diverged as error:
        optimizer = job.optimizer
        if job.config.on_divergence != RETRY_SCALED or scale_by_staleness(optimizer) == optimizer:
            raise
        scaled = replace(
            job, optimizer=scale_by_staleness(optimizer), run=job.run + 1
        )  # its checkpoints are later ones
        retry = DivergenceRetry(error.code, error.facts.partition("\n")[0], scaled.optimizer.name)
    on_notice(retry.describe())
    try:
        return scaled, train(scaled), retry
    except Diverged as error:
        facts = f"{error.facts}; it had diverged with optimizer {optimizer.name} before ({retry.code})"
        raise Diverged(error.code, facts, fix=error.fix) from error
