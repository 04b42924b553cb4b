"""Runs a training job: plans or reads the placement, starts the roles, follows them, and puts the result together.

`prepare` does everything that can go wrong before a process is started; `run` starts them.
"""

import os
import platform
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from ..models.task import Task
from ..partition.capture import state_values
from ..partition.cluster import alike
from ..partition.errors import BadInput, UsageError
from ..partition.placement import Placement
from ..ps.checkpoint import Manifest, ShardFile, whole_state, write_manifest
from ..ps.downpour import Downpour
from ..ps.layout import Slice, layout, of_machine, of_shard
from ..ps.region import Region
from ..ps.rule import Adagrad, AnyRule
from ..runtime.launcher import Launcher, Role
from ..runtime.message import Message
from ..runtime.plain import PlainWorker
from ..runtime.program import Program
from .load import TaskSpec, build_model, example_batch, load_task
from .planning import Captured, captured, compiled, matched, planned
from .rehearsal import rehearse
from .roles import BASELINE, SHARD, WORKER, BaselineSetup, Course, ShardSetup, WorkerSetup, stored, worker_name

LOGS = "logs"
ROLES_MAX = 256
LR_MAX = torch.finfo(torch.float32).max
UNTRACEABLE = "E320"
FAILS_UNTRACED = "E321"  # the model fails without data: because it looks at the data, or because the example is wrong


@dataclass(frozen=True)
class Options:
    """What is asked for.

    machines: per replica. only: the kind of candidate plans. placement: instead of a new plan. baseline: also train in
    one process. target: test accuracy to report the time to.
    """

    spec: TaskSpec
    method: Downpour
    rule: AnyRule
    out: Path
    machines: int = 1
    only: str = ""
    placement: Placement | None = None
    replicas: int = 1
    shards: int = 1
    epochs: int = 1
    seed: int = 0
    target: float | None = None
    baseline: bool = True


@dataclass(frozen=True)
class Prepared:
    """A job that can be started. programs, evaluations: by machine; empty where the model is trained uncut.

    names: of the model's state_dict; a tied tensor has several, and each leads to the one that the run knows it by.
    """

    options: Options
    task_name: str
    placement: Placement | None
    course: Course
    programs: Sequence[Program]
    evaluations: Sequence[Program]
    regions: list[list[Region]]
    slices: list[Slice]
    names: dict[str, str]
    notes: list[str] = field(default_factory=list)

    @property
    def machines(self) -> int:
        """Workers of a replica."""
        return len(self.regions)


Tell = Callable[[str, int, int, float], None]  # run, step, steps, loss


def prepare(options: Options) -> Prepared:
    """Load, capture, plan and check; write the placement and the initial weights into the run folder."""
    _check(options)
    task = load_task(options.spec)
    try:
        ready = captured(options.spec, task)
    except BadInput as error:
        if error.code not in (UNTRACEABLE, FAILS_UNTRACED) or options.machines != 1 or options.placement is not None:
            raise
        return _uncut(options, task, error)
    return _cut(options, ready)


def _check(options: Options) -> None:
    for name, value, least in (
        ("replicas", options.replicas, 1),
        ("shards", options.shards, 1),
        ("epochs", options.epochs, 1),
    ):
        if value < least:
            raise UsageError("E220", f"--{name} {value}; it must be at least {least}", fix=f"--{name} {least}")
    if options.target is not None and not 0 <= options.target <= 1:
        raise UsageError("E225", f"--target {options.target}; it is a share of right answers", fix="--target 0.95")
    if options.rule.lr > LR_MAX:
        raise UsageError("E226", f"--lr {options.rule.lr:g}; float32 ends at {LR_MAX:.3g}", fix="--lr 0.05")
    machines = len(options.placement.machines) if options.placement else options.machines
    alike(machines)
    roles = machines * options.replicas + options.shards
    if roles > ROLES_MAX:
        raise UsageError(
            "E221",
            f"{roles} processes on this host; {ROLES_MAX} at most",
            fix="fewer --machines, --replicas or --shards",
        )
    try:
        (options.out / LOGS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("E222", f"cannot make the run folder {options.out}: {error}", fix="--out FOLDER") from error


def _cut(options: Options, ready: Captured) -> Prepared:
    placement = options.placement or planned(
        ready, options.spec, alike(options.machines), seed=options.seed, only=options.only
    )
    cut = matched(ready, placement)
    trained, evaluated = compiled(ready, cut)
    placement.save(options.out / "placement.json")
    model = build_model(ready.task, seed=options.seed)
    course = _course(options, ready.task, model, ready.constants, ready.batch)
    regions = [_regions(program) for program in trained]
    slices = layout([program.elements for program in trained], options.shards)
    names = state_names(model)
    return Prepared(options, ready.task.name, placement, course, trained, evaluated, regions, slices, names)


def _uncut(options: Options, task: Task, error: BadInput) -> Prepared:
    """A model that cannot be traced, as `error` says, data parallel only."""
    model = build_model(task, seed=options.seed)
    names = state_names(model)
    try:
        course = _course(options, task, model, {}, options.spec.batch or task.batch)
    except BadInput as found:
        if error.code == FAILS_UNTRACED:
            raise error from found
        raise
    regions, offset = [], 0
    for name, parameter in PlainWorker(model, task.loss).parameters.items():
        shape = list(parameter.shape)
        regions.append(Region(name, shape, shape, [(0, n) for n in shape], offset))
        offset += parameter.numel()
    note = f"it is trained uncut, data parallel only: {error.facts}"
    return Prepared(
        options, task.name, None, course, [], [], [regions], layout([offset], options.shards), names, [note]
    )


def state_names(model: nn.Module) -> dict[str, str]:
    """Each name in the state_dict -> the name by which a run knows the tensor: the first that it has in the model."""
    first: dict[int, str] = {}
    for listed in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        for name, tensor in listed:
            first.setdefault(id(tensor), name)
    return {name: first[id(tensor)] for name, tensor in model.state_dict(keep_vars=True).items() if id(tensor) in first}


def _course(options: Options, task: Task, model: nn.Module, constants: dict[str, Tensor], batch: int) -> Course:
    """Save the initial state, rehearse, and share the samples of all epochs out in whole batches, the steps."""
    values = state_values(model, task.loss, constants)
    initial = _save_state(options.out / "initial.safetensors", values)
    samples = rehearse(task, model, example_batch(task, batch))
    steps = options.epochs * samples // batch // options.replicas
    if steps < 1:
        raise UsageError(
            "E223",
            f"{options.epochs} epochs of {samples} samples have no batch of {batch} for each of {options.replicas} "
            "replicas",
            fix="fewer --replicas, a smaller --batch, or more --epochs",
        )
    options.method.check(steps)
    every = max(1, steps // options.epochs)
    return Course(options.spec, batch, options.seed, options.replicas, steps, every, str(initial.resolve()))


def _regions(program: Program) -> list[Region]:
    """Where the trained parameters of a machine lie in its flat buffer."""
    regions = []
    for state in program.states:
        if state.offset >= 0:
            piece = program.pieces[state.piece]
            info = program.tensors[piece.tensor]
            regions.append(Region(info.name, list(info.shape), list(info.extents), list(piece.box), state.offset))
    return regions


def _save_state(path: Path, tensors: dict[str, Tensor]) -> Path:
    try:
        save_file({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, path)
    except (OSError, SafetensorError) as error:
        raise UsageError("E222", f"cannot write {path}: {error}", fix="--out FOLDER with enough space") from error
    return path


# Running -----------------------------------------------------------------------------------------------------------


def run(job: Prepared, tell: Tell) -> dict[str, Any]:
    """Train in one process and by the method, and return the result (see tools/report.py). tell: progress."""
    rows = []
    if job.options.baseline:
        rows.append(_row(job, "one process", _run_baseline(job, tell), processes=1))
    outcome = _run_method(job, tell)
    name = f"downpour, {job.machines} machines x {job.options.replicas} replicas, {job.options.shards} shards"
    workers = outcome["workers"]
    zero = [workers[worker_name(0, m)] for m in range(job.machines)]
    main = {
        "seconds": outcome["seconds"],
        "curve": next(w["curve"] for w in zero if w["curve"]),
        "losses": next(w["losses"] for w in zero if w["losses"]),
    }
    row = _row(job, name, main, processes=job.machines * job.options.replicas + job.options.shards)
    late = _staleness(outcome["shards"])
    links = _links(workers)
    row["staleness_mean"], row["staleness_max"] = (
        _mean(late),
        max((int(t) for h in late.values() for t in h), default=0),
    )
    row["bytes_per_step"] = sum(link["bytes"] for link in links) / (job.course.steps * job.options.replicas)
    rows.append(row)
    return {
        "task": job.options.spec.model,
        "test_accuracy": row["test_accuracy"],
        "verdict": _verdict(job, rows),
        "notes": _notes(job, rows),
        "rows": rows,
        "staleness": late,
        "links": links,
        "settings": _settings(job),
        "versions": {name: version(name) for name in ("cutset", "torch", "pyzmq")}
        | {"python": platform.python_version()},
        "out": str(job.options.out),
    }


def _threads(processes: int) -> int:
    return max(1, (os.cpu_count() or 1) // processes)


def _run_baseline(job: Prepared, tell: Tell) -> dict[str, Any]:
    # As many steps as all replicas take together: the same samples.
    course = msgspec.structs.replace(
        job.course,
        steps=job.course.steps * job.course.replicas,
        evaluate_every=job.course.evaluate_every * job.course.replicas,
        replicas=1,
    )
    setup = msgspec.to_builtins(BaselineSetup(course, job.options.rule))
    role = Role("one-process", BASELINE, setup, threads=_worker_threads(job))
    with Launcher([role], job=_job_name(), folder=job.options.out / LOGS) as launcher:
        launcher.start()
        for message in launcher.events():
            _tell(tell, "one process", message)
        result: dict[str, Any] = launcher.results["one-process"]
    return result


def _worker_threads(job: Prepared) -> int:
    return _threads(job.machines * job.options.replicas)


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
            roles.append(Role(worker_name(replica, machine), WORKER, plain, threads=_worker_threads(job)))
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
    _save_state(job.options.out / "model.safetensors", weights)


def _extents(job: Prepared, name: str) -> tuple[int, ...]:
    return next(p.tensors[name].extents for p in (*job.programs, *job.evaluations) if name in p.tensors)


# The result --------------------------------------------------------------------------------------------------------


def _row(job: Prepared, name: str, outcome: dict[str, Any], *, processes: int) -> dict[str, Any]:
    curve, seconds = outcome["curve"], outcome["seconds"]
    samples = job.course.steps * job.course.replicas * job.course.batch
    target = job.options.target
    reached = [point["seconds"] for point in curve if target is not None and point["test_accuracy"] >= target]
    return {
        "name": name,
        "processes": processes,
        "threads": _worker_threads(job),
        "samples": samples,
        "seconds": seconds,
        "samples_per_s": samples / seconds,
        "test_accuracy": curve[-1]["test_accuracy"],
        "target": target,
        "time_to_target_s": reached[0] if reached else None,
        "staleness_mean": None,
        "staleness_max": None,
        "bytes_per_step": None,
        "curve": curve,
        "losses": outcome["losses"],
    }


def _staleness(served: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Pushes by staleness, per worker, over all shards."""
    out: dict[str, dict[str, int]] = {}
    for shard in served:
        for piece in shard["slices"]:
            for worker, counts in piece["staleness"].items():
                histogram = out.setdefault(worker, {})
                for tau, pushes in counts["histogram"]:
                    histogram[str(tau)] = histogram.get(str(tau), 0) + pushes
    return dict(sorted(out.items()))


def _mean(late: dict[str, dict[str, int]]) -> float | None:
    pushes = sum(n for histogram in late.values() for n in histogram.values())
    return sum(int(tau) * n for h in late.values() for tau, n in h.items()) / pushes if pushes else None


def _links(workers: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Tensor bytes and messages between processes as the workers counted them."""
    links = []
    for name, outcome in workers.items():
        for peer, counts in outcome["links"].items():
            if counts["bytes_out"]:
                links.append(
                    {"source": name, "target": peer, "bytes": counts["bytes_out"], "messages": counts["messages_out"]}
                )
            if counts["bytes_in"] and peer.startswith("shard"):
                links.append(
                    {"source": peer, "target": name, "bytes": counts["bytes_in"], "messages": counts["messages_in"]}
                )
    return links


def _verdict(job: Prepared, rows: Sequence[dict[str, Any]]) -> str:
    last = rows[-1]
    if len(rows) == 1:
        return f"{last['test_accuracy']:.1%} test accuracy after {last['samples']} samples in {last['seconds']:.1f} s."
    first = rows[0]
    ratio = last["samples_per_s"] / first["samples_per_s"]
    points = 100 * (last["test_accuracy"] - first["test_accuracy"])
    return (
        f"{last['test_accuracy']:.1%} test accuracy, {abs(points):.1f} points {'above' if points >= 0 else 'below'} "
        f"one process at the same number of samples; {ratio:.2f} times its samples a second."
    )


def _notes(job: Prepared, rows: Sequence[dict[str, Any]]) -> list[str]:
    notes = list(job.notes)
    cores, processes = os.cpu_count() or 1, rows[-1]["processes"]
    if processes > cores:
        notes.append(
            f"{processes} processes share {cores} cores here: the seconds say nothing about as many machines, "
            "the accuracy does."
        )
    if job.placement is not None and job.machines > 1:
        notes.append(f"The plan: {job.placement.verdict}")
    return notes


def _settings(job: Prepared) -> dict[str, Any]:
    options = job.options
    return {
        "machines": job.machines,
        "replicas": options.replicas,
        "shards": options.shards,
        "method": str(options.method),
        "rule": str(options.rule),
        "epochs": options.epochs,
        "batch": job.course.batch,
        "steps of each replica": job.course.steps,
        "seed": options.seed,
        "placement": job.placement.winner if job.placement else "uncut",
    }


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
    seed: int = 0,
    baseline: bool = True,
    out: str | Path = "runs/last",
) -> dict[str, Any]:
    """Train a task named as on the command line ("file.py:factory") and return the result, as result.json has it.

    The processes of the run import the task again by this name, so it must not be one of an interactive session.
    """
    options = Options(
        spec=TaskSpec(task, data, (), batch),
        method=method or Downpour(),
        rule=rule or Adagrad(0.02),
        out=Path(out),
        machines=machines,
        placement=placement,
        replicas=replicas,
        shards=shards,
        epochs=epochs,
        seed=seed,
        baseline=baseline,
    )
    return run(prepare(options), lambda name, step, steps, loss: None)
