"""Runs a prepared training job: starts the roles, follows them to the end, and writes the checkpoint."""

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..partition.placement import Placement
from ..ps.checkpoint import Manifest, ShardFile, whole_state, write_manifest
from ..ps.downpour import Downpour
from ..ps.layout import of_machine, of_shard
from ..ps.rule import Adagrad, AnyRule
from ..runtime.launcher import Launcher, Role
from ..runtime.message import Message
from .load import TaskSpec
from .planning import Wanted
from .prepare import LOGS, Options, Prepared, prepare, save_state
from .result import compared
from .roles import BASELINE, SHARD, WORKER, BaselineSetup, ShardSetup, WorkerSetup, stored, worker_name

Tell = Callable[[str, int, int, float], None]  # run, step, steps, loss


def run(job: Prepared, tell: Tell) -> dict[str, Any]:
    """Train in one process and by the method, and return the result (see tools/report.py). tell: progress."""
    baseline = _run_baseline(job, tell) if job.options.baseline else None
    return compared(job, baseline, _run_method(job, tell))


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
            _tell(tell, "one process", message)
        result: dict[str, Any] = launcher.results["one-process"]
    return result


def _job_name() -> str:
    return f"cutset-{uuid.uuid4().hex[:12]}"


def _tell(tell: Tell, name: str, message: Message) -> None:
    if message.kind == "progress":
        tell(name, message.body["step"], message.body["steps"], message.body["loss"])


def _run_method(job: Prepared, tell: Tell) -> dict[str, Any]:
    """Start shards and workers, let them train, test at replica 0, and write the checkpoint."""
    options = job.options
    workers = [worker_name(r, m) for r in range(options.replicas) for m in range(job.machines)]
    shards = [f"shard-{s}" for s in range(options.shards)]
    testers = workers[: job.machines]
    following = f"worker-0.{_loss_machine(job)}"
    trained, state = set[str](), list[Message]()
    with Launcher(_roles(job), job=_job_name(), folder=options.out / LOGS) as launcher:
        launcher.start()
        for message in launcher.events():
            if message.sender == following:
                _tell(tell, "downpour", message)
            if message.kind == "state":
                state.append(message)
            if message.kind == "trained" or (message.kind == "finished" and message.sender in workers):
                before = len(trained)
                trained.add(message.sender)
                if before < len(workers) == len(trained):
                    for name in testers:
                        launcher.send(name, Message("all trained"))
            if message.kind == "finished" and message.sender in workers and set(workers) <= set(launcher.results):
                _finish_shards(launcher, shards, options.out)
        results = launcher.results
    served = [results[name] for name in shards]
    _write_checkpoint(job, served, state)
    return {
        "seconds": max(results[name]["seconds"] for name in workers),
        "workers": {name: results[name] for name in workers},
        "shards": served,
    }


def _finish_shards(launcher: Launcher, shards: Sequence[str], out: Path) -> None:
    for name in shards:
        launcher.send(name, Message("finish", body={"path": str((out / "checkpoint").resolve())}))


def _loss_machine(job: Prepared) -> int:
    return next((p.machine for p in job.programs if p.results), 0)


def _roles(job: Prepared) -> list[Role]:
    options = job.options
    roles = [
        Role(f"shard-{s}", SHARD, msgspec.to_builtins(ShardSetup(s, of_shard(job.slices, s), options.rule)))
        for s in range(options.shards)
    ]
    for replica in range(options.replicas):
        for machine in range(job.machines):
            setup = WorkerSetup(
                course=job.course,
                replica=replica,
                machine=machine,
                machines=job.machines,
                program=msgspec.msgpack.encode(job.programs[machine]) if job.programs else b"",
                evaluation=msgspec.msgpack.encode(job.evaluations[machine]) if job.programs else b"",
                slices=of_machine(job.slices, machine),
                method=options.method,
                rule=options.rule,
            )
            plain = msgspec.to_builtins(setup, builtin_types=(bytes,))
            roles.append(Role(worker_name(replica, machine), WORKER, plain, threads=job.worker_threads))
    return roles


def _write_checkpoint(job: Prepared, served: Sequence[dict[str, Any]], state: Sequence[Message]) -> None:
    """Complete the checkpoint of the shards, and write the whole model as a plain state_dict beside it."""
    folder = job.options.out / "checkpoint"
    initial = stored(job.course.initial)
    files = [msgspec.convert(shard["file"], ShardFile) for shard in served]
    about = {"task": job.options.spec.model, "epochs": job.options.epochs}
    write_manifest(folder, Manifest(job.slices, job.regions, files, about))
    whole = whole_state(folder)
    for message in state:
        for (name, box), tensor in zip(message.body["boxes"], message.tensors, strict=True):
            target = whole.setdefault(name, initial(name))
            if box is None:
                target.copy_(tensor)
            else:
                extents = _extents(job, name)
                target.view(extents)[tuple(slice(a, b) for a, b in box)] = tensor
    # What no operator uses is as it was at the beginning.
    weights = {name: whole[known] if known in whole else initial(known) for name, known in job.names.items()}
    save_state(job.options.out / "model.safetensors", weights)


def _extents(job: Prepared, name: str) -> tuple[int, ...]:
    return next(p.tensors[name].extents for p in (*job.programs, *job.evaluations) if name in p.tensors)


def train(
    task: str,
    *,
    machines: int = 1,
    replicas: int = 1,
    shards: int = 1,
    method: Downpour | None = None,
    rule: AnyRule | None = None,
    epochs: int = 1,
    data: str | None = None,
    batch: int | None = None,
    placement: Placement | None = None,
    blocks: Sequence[str] = (),
    micro_batches: int = 1,
    seed: int = 0,
    baseline: bool = True,
    out: str | Path = "runs/last",
) -> dict[str, Any]:
    """Train a task named as on the command line ("file.py:factory") and return the result, as result.json has it.

    blocks: globs; a module whose name matches one is one operator of the plan, whose inside is not traced. The
    processes of the run import the task again by this name, so it must not be one of an interactive session.
    """
    options = Options(
        spec=TaskSpec(task, data, (), batch, tuple(blocks)),
        method=method or Downpour(),
        rule=rule or Adagrad(0.02),
        out=Path(out),
        wanted=Wanted(machines, micro_batches=micro_batches, seed=seed),
        placement=placement,
        replicas=replicas,
        shards=shards,
        epochs=epochs,
        seed=seed,
        baseline=baseline,
    )
    return run(prepare(options), lambda name, step, steps, loss: None)
