"""Run a prepared job by Sandblaster, and torch's L-BFGS in one process to compare with."""

import shutil
from pathlib import Path
from typing import Any

import msgspec

from ...errors import UsageError
from ...ps.checkpoint.write_checkpoint import write_once_there_is_room
from ...ps.methods.sandblaster import Sandblaster
from ...ps.sandblaster.solver import Portions
from ...runtime.hosts.host import Role
from ...runtime.launcher.launcher import Route
from ..hosts.run_hosts import RunHosts
from ..job.export_weights import write_checkpoint
from ..job.job import Job
from ..job.portion_size import FOLDER, portions_of_job
from ..job.resume import remove_resumed
from ..run_folder import CHECKPOINT, INITIAL
from ..run_listener import CheckpointReport, RunListener
from ..training.supervision import OnNotice, describe_wait_for_room, run_one_process, run_roles
from .roles import BASELINE, TorchBaselineSpec
from .supervisor import SandblasterSupervisor


def run_sandblaster(
    job: Job,
    method: Sandblaster,
    hosts: RunHosts,
    listener: RunListener,
    on_notice: OnNotice,
    route: Route | None,
) -> dict[str, Any]:
    """Train, evaluate and write the checkpoint; return what the roles reported.

    The result has the "seconds" up to the last iteration, the result of the "coordinator", the "iterations", the
    "restarts", the results of "shards" and "workers", the "scores" on test samples, and the result of the "baseline" or
    None.
    """
    portions = portions_of_job(job)
    prepare_folder(job)
    supervisor = SandblasterSupervisor(job, method, portions, hosts, listener=listener, on_notice=on_notice)
    results = run_roles(job, supervisor, hosts, listener, on_notice, route)
    shards = [results[name] for name in supervisor.shards]
    coordinator = results[supervisor.coordinator]
    write_once_there_is_room(
        lambda: write_checkpoint(job, shards, supervisor.state_files),
        lambda reason: on_notice(describe_wait_for_room("the launcher", reason)),
    )
    listener.on_checkpoint(CheckpointReport(job.out / CHECKPOINT, supervisor.iterations[-1]["number"]))
    remove_resumed(job.out)
    baseline = None
    if job.config.trains_alone and not method.l1:
        evaluations = max(1, round(coordinator["samples"] / portions.samples))
        baseline = _run_baseline(job, method, portions, evaluations, hosts, listener)
    return {
        "seconds": supervisor.seconds,
        "coordinator": coordinator,
        "iterations": supervisor.iterations,
        "restarts": supervisor.restarts,
        "shards": shards,
        "workers": supervisor.results,
        "scores": supervisor.scores,
        "baseline": baseline,
    }


def prepare_folder(job: Job) -> None:
    """Make the folder of the recovery log and the shards' commits, with the initial weights.

    A run that resumes another one gets a copy of its folder, and starts from its initial weights.
    """
    folder = job.out / FOLDER
    source = None if job.config.resume is None else Path(job.config.resume) / FOLDER
    try:
        if source is None or source.resolve() != folder.resolve():
            shutil.rmtree(folder, ignore_errors=True)
        if source is None:
            folder.mkdir(parents=True)
            shutil.copyfile(job.training.initial, folder / INITIAL)
            return
        if source.resolve() != folder.resolve():
            shutil.copytree(source, folder)
        shutil.copyfile(folder / INITIAL, job.training.initial)
    except OSError as error:
        raise UsageError("E222", f"cannot write {folder}: {error}", fix="--out FOLDER with enough space") from error


def _run_baseline(
    job: Job,
    method: Sandblaster,
    portions: Portions,
    evaluations: int,
    hosts: RunHosts,
    listener: RunListener,
) -> dict[str, Any]:
    setup = msgspec.to_builtins(TorchBaselineSpec(job.training, method, portions.samples, evaluations))
    return run_one_process(job, Role("one-process", BASELINE, setup, threads=hosts.first.cores), hosts, listener)
