"""Runs a prepared training job: starts the roles, follows them to the end, and writes the checkpoint."""

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..errors import UsageError
from ..partition.placement.placement_file import Placement
from ..ps.slices.compression import compression
from ..ps.methods.downpour import Downpour
from ..ps.optimizers.standard import Adagrad
from ..ps.checkpoint.journal import remove_journals
from ..ps.methods.registry import AnyMethod
from ..ps.optimizers.registry import AnyRule
from ..ps.methods.sandblaster import Sandblaster
from ..runtime.launcher.launcher import Launcher, Role, Route
from ..runtime.worker.schedule import DATAFLOW
from .sandblaster.run import run_batch
from .training.buffer_file import removed_afterwards
from .training.checkpoint_sets import remove_incomplete
from .analysis.chrome_trace import chrome_trace
from .job.run_config import BaselineSetup, worker_name
from .training.divergence_restart import STOP, run_damped
from .task.load_task import TaskSpec
from .task.plan_task import Wanted
from .job.prepare import LOGS, Options, Prepared, prepare
from .analysis.recorded_steps import Recorded, recorded, whole_steps
from .analysis.result import compared
from .job.resume import remove_resumed
from .training.roles import BASELINE
from .job.export_weights import write_checkpoint
from .training.scale_requests import Wishes
from .training.supervisor import Note, Supervisor, Tell

TRACE = "trace.json"  # in the run folder


def run(job: Prepared, tell: Tell, *, note: Note = lambda words: None, route: Route | None = None) -> dict[str, Any]:
    """Train in one process and by the method, and return the result (see tools/report.py).

    tell: progress; note: is told in words of each restart; route: how roles reach each other, see `Launcher`.
    """
    if isinstance(job.options.method, Sandblaster):
        return run_batch(job, job.options.method, tell, note, route)
    alone = job.options.baseline and job.options.resume is None  # which has no checkpoint to go on from
    baseline = _run_baseline(job, tell) if alone else None
    job, outcome, damped = run_damped(job, lambda job: _run_method(job, tell, note, route), note)
    spans = recorded([outcome["workers"][worker_name(0, m)] for m in range(job.machines)])
    _write_trace(job, spans)
    return compared(job, baseline, outcome, spans, damped)


def _write_trace(job: Prepared, spans: Recorded) -> None:
    """The recorded steps for Perfetto, where the model was cut; that of an earlier run in the folder goes."""
    path = job.options.out / TRACE
    try:
        path.unlink(missing_ok=True)
        if job.placement is not None and whole_steps(spans):
            path.write_bytes(msgspec.json.encode(chrome_trace(job.placement, spans, job.programs)))
    except OSError as error:
        raise UsageError("E222", f"cannot write {path}: {error}", fix="--out FOLDER with enough space") from error


def _run_baseline(job: Prepared, tell: Tell) -> dict[str, Any]:
    # As many steps as all replicas take together: the same samples.
    course = msgspec.structs.replace(
        job.course,
        steps=job.course.steps * job.course.replicas,
        evaluate_every=job.course.evaluate_every * job.course.replicas,
        replicas=1,
    )
    setup = msgspec.to_builtins(BaselineSetup(course, job.options.rule))
    role = Role("one-process", BASELINE, setup, threads=job.worker_threads)
    with Launcher([role], job=_job_name(), folder=job.options.out / LOGS) as launcher:
        launcher.start()
        for message in launcher.events():
            if message.kind == "progress":
                tell("one process", message.body["step"], message.body["steps"], message.body["loss"])
        result: dict[str, Any] = launcher.results["one-process"]
    return result


def _job_name() -> str:
    return f"cutset-{uuid.uuid4().hex[:12]}"


def _run_method(job: Prepared, tell: Tell, note: Note, route: Route | None) -> dict[str, Any]:
    """Start shards and workers, let them train, test at replica 0, and write the checkpoint."""
    with Wishes(job.options.out, note=note) as wishes:
        return _supervised(job, Supervisor(job, tell=tell, note=note, wishes=wishes), route)


def _supervised(job: Prepared, supervisor: Supervisor, route: Route | None) -> dict[str, Any]:
    out = job.options.out
    launching = Launcher(
        supervisor.roles(),
        job=_job_name(),
        folder=out / LOGS,
        spares=supervisor.spares,
        renew=supervisor.renew,
        watch=supervisor.watch,
        route=route,
    )
    remove_journals(out)  # of a run before this one
    remove_incomplete(out)
    with removed_afterwards(out, replicas=supervisor.replicas_most, machines=job.machines), launching as launcher:
        launcher.start()
        supervisor.began()
        for message in launcher.events():
            supervisor.take(message, launcher)
        served = [launcher.results[name] for name in supervisor.shards]
    write_checkpoint(job, served, supervisor.state)
    remove_incomplete(out)
    remove_journals(out)
    remove_resumed(out)
    return {
        "seconds": max(result["seconds"] for result in supervisor.results.values()),
        "workers": supervisor.results,
        "shards": served,
        "curve": supervisor.curve,
        "losses": supervisor.losses,
        "restarts": supervisor.restarts,
        "shard_restarts": supervisor.shard_restarts,
        "shares": supervisor.shares,
    }


def train(
    task: str,
    *,
    machines: int = 1,
    replicas: int = 1,
    shards: int | None = None,
    method: AnyMethod | None = None,
    rule: AnyRule | None = None,
    epochs: int = 1,
    data: str | None = None,
    batch: int | None = None,
    placement: Placement | None = None,
    blocks: Sequence[str] = (),
    autocast: str = "",
    micro_batches: int = 1,
    seed: int = 0,
    baseline: bool = True,
    restarts: int = 3,
    init: str | Path | None = None,
    checkpoint_every: int | str = 0,
    keep: int = 3,
    resume: str | Path | None = None,
    schedule: str = DATAFLOW,
    clip_norm: float = 0.0,
    compress: str = "",
    on_divergence: str = STOP,
    out: str | Path = "runs/last",
) -> dict[str, Any]:
    """Train a task named as on the command line ("file.py:factory") and return the result, as result.json has it.

    blocks: globs; a module whose name matches one is one operator of the plan, whose inside is not traced. autocast:
    the dtype in which torch.autocast computes model and loss ("bfloat16"), if any; one of a placement is its own. The
    processes of the run import the task again by this name, so it must not be one of an interactive session.
    restarts: how often a replica that died, stopped or lost a link is started again. shards: by default as many as
    machines, so that none holds the whole. init: a safetensors file, or a run folder, with the weights to begin with.
    checkpoint_every: steps of each replica between two checkpoints, or a time as "5min"; keep: so many of them.
    schedule: in what order the micro-batches run, "dataflow", "gpipe" or "1f1b". clip_norm: the most that the norm of
    all gradients of a step may be; 0 for no limit. compress: how pushes are, "topk:share=0.01" say. on_divergence:
    "stop", or "damp" to begin once more with the rate divided by the staleness.
    """
    options = Options(
        spec=TaskSpec(task, data, (), batch, tuple(blocks), autocast),
        method=method or Downpour(),
        rule=rule or Adagrad(0.02),
        out=Path(out),
        wanted=Wanted(machines, micro_batches=micro_batches, seed=seed),
        placement=placement,
        replicas=replicas,
        shards=1 if shards is None else shards,
        spread=shards is None,
        init=None if init is None else Path(init),
        checkpoint_every=checkpoint_every,
        keep=keep,
        resume=None if resume is None else Path(resume),
        epochs=epochs,
        seed=seed,
        baseline=baseline,
        restarts=restarts,
        schedule=schedule,
        clip_norm=clip_norm,
        compression=compression(compress) if compress else None,
        on_divergence=on_divergence,
    )
    return run(prepare(options), lambda name, step, steps, loss: None)
