"""Runs a prepared job by a batch method, and torch's L-BFGS beside it; the result is as `train.run`'s."""

import os
import platform
import shutil
import uuid
from importlib.metadata import version
from typing import Any

import msgspec

from ...errors import UsageError
from ...ps.sandblaster.solver import Portions
from ...ps.methods.sandblaster import Sandblaster
from ...runtime.launcher.launcher import Launcher, Role, Route
from .roles import BASELINE, TorchSetup
from .supervisor import THREADS, BatchSupervisor, Note, Tell
from ..job.portion_size import FOLDER, left_out, portions_of
from ..job.prepare import INITIAL, LOGS, Prepared
from ..job.resume import remove_resumed
from ..job.export_weights import write_checkpoint

BESIDE = "one process, torch's L-BFGS"


def run_batch(job: Prepared, method: Sandblaster, tell: Tell, note: Note, route: Route | None) -> dict[str, Any]:
    """Train, test, write the checkpoint; the result as plain data."""
    portions = portions_of(job)
    prepare_folder(job)
    outcome = _run(job, method, portions, tell, note, route)
    told = outcome["result"]
    evaluations = round(told["samples"] / portions.samples)
    beside = None
    if job.options.baseline and job.options.resume is None and not method.l1:
        beside = _beside(job, method, portions, max(1, evaluations), tell)
    return _result(job, method, portions, outcome, beside)


def prepare_folder(job: Prepared) -> None:
    """A folder for log and commits, with the first weights; of a run that goes on, with those of the one before."""
    folder, resume = job.options.out / FOLDER, job.options.resume
    given = None if resume is None else resume / FOLDER
    try:
        if given is None or given.resolve() != folder.resolve():
            shutil.rmtree(folder, ignore_errors=True)
        if given is None:
            folder.mkdir(parents=True)
            shutil.copyfile(job.course.initial, folder / INITIAL)
            return
        if given.resolve() != folder.resolve():
            shutil.copytree(given, folder)
        shutil.copyfile(folder / INITIAL, job.course.initial)
    except OSError as error:
        raise UsageError("E222", f"cannot write {folder}: {error}", fix="--out FOLDER with enough space") from error


def _run(
    job: Prepared, method: Sandblaster, portions: Portions, tell: Tell, note: Note, route: Route | None
) -> dict[str, Any]:
    supervisor = BatchSupervisor(job, method, portions, tell=tell, note=note)
    launching = Launcher(
        supervisor.roles(),
        job=f"cutset-{uuid.uuid4().hex[:12]}",
        folder=job.options.out / LOGS,
        spares=supervisor.spares,
        renew=supervisor.renew,
        watch=supervisor.watch,
        route=route,
    )
    with launching as launcher:
        launcher.start()
        supervisor.began()
        for message in launcher.events():
            supervisor.take(message, launcher)
        served = [launcher.results[name] for name in supervisor.shards]
        result = launcher.results[supervisor.coordinator]
    write_checkpoint(job, served, supervisor.state)
    remove_resumed(job.options.out)
    return {
        "seconds": supervisor.seconds,
        "result": result,
        "iterations": supervisor.iterations,
        "restarts": supervisor.restarts,
        "shards": served,
        "workers": supervisor.results,
        "test_accuracy": supervisor.accuracy,
    }


def _beside(job: Prepared, method: Sandblaster, portions: Portions, evaluations: int, tell: Tell) -> dict[str, Any]:
    setup = msgspec.to_builtins(TorchSetup(job.course, method, portions.samples, evaluations))
    role = Role("one-process", BASELINE, setup, threads=job.worker_threads)
    with Launcher([role], job=f"cutset-{uuid.uuid4().hex[:12]}", folder=job.options.out / LOGS) as launcher:
        launcher.start()
        for message in launcher.events():
            if message.kind == "progress":
                body = message.body
                tell("one process", min(body["step"], body["steps"]), body["steps"], body["loss"])
        found: dict[str, Any] = launcher.results["one-process"]
    return found


def _result(
    job: Prepared, method: Sandblaster, portions: Portions, outcome: dict[str, Any], beside: dict[str, Any] | None
) -> dict[str, Any]:
    told, iterations = outcome["result"], outcome["iterations"]
    options = job.options
    processes = job.machines * options.replicas + options.shards + 1
    name = f"{method.name}, {job.machines} machines x {options.replicas} replicas, {options.shards} shards"
    rows = []
    if beside is not None:
        count = round(beside["evaluations"] * portions.samples)
        rows.append(_row(BESIDE, 1, job.worker_threads, count, beside["seconds"], beside["test_accuracy"], []))
    per = told["samples"] / max(1, told["evaluations"])
    replayed = [one["evaluations"] for one in iterations if one["replayed"]]  # of a run that it goes on from
    before = max(replayed, default=0)
    samples = round(told["samples"] - before * per)
    losses = [(round(one["evaluations"] * per), one["loss"]) for one in iterations]
    row = _row(name, processes, THREADS, samples, outcome["seconds"], outcome["test_accuracy"], losses)
    steps = max(1, sum(not one["replayed"] for one in iterations))
    row["bytes_per_step"] = sum(shard["bytes_in"] + shard["bytes_out"] for shard in outcome["shards"]) / steps
    rows.append(row)
    loss = iterations[-1]["loss"] if iterations else None
    return {
        "task": options.spec.model,
        "test_accuracy": row["test_accuracy"],
        "verdict": _verdict(told, len(iterations), loss, row["test_accuracy"], beside),
        "notes": [*job.notes, *left_out(job), *_notes(job, processes, outcome)],
        "rows": rows,
        "iterations": iterations,
        "why": told["why"],
        "coordinator": told,
        "beside": beside,
        "staleness": {},
        "links": [],
        "restarts": outcome["restarts"],
        "measured": None,
        "shards": [{k: v for k, v in shard.items() if k != "file"} for shard in outcome["shards"]],
        "settings": {
            "machines": job.machines,
            "replicas": options.replicas,
            "shards": options.shards,
            "method": str(method),
            "samples": portions.samples,
            "samples of a portion": portions.size,
            "portions": portions.count,
            "seed": options.seed,
            "placement": job.placement.winner if job.placement else "uncut",
        },
        "versions": {name: version(name) for name in ("cutset", "torch", "pyzmq")}
        | {"python": platform.python_version()},
        "out": str(options.out),
    }


def _row(
    name: str,
    processes: int,
    threads: int,
    samples: int,
    seconds: float,
    accuracy: float | None,
    losses: list[tuple[int, float]],
) -> dict[str, Any]:
    point = {"seconds": seconds, "samples": samples, "test_accuracy": accuracy}
    return {
        "name": name,
        "processes": processes,
        "threads": threads,
        "samples": samples,
        "seconds": seconds,
        "samples_per_s": samples / seconds if seconds else 0.0,
        "test_accuracy": accuracy,
        "target": None,
        "time_to_target_s": None,
        "staleness_mean": None,
        "staleness_max": None,
        "bytes_per_step": None,
        "curve": [point],
        "losses": losses,
    }


def _verdict(
    told: dict[str, Any], count: int, loss: float | None, accuracy: float, beside: dict[str, Any] | None
) -> str:
    if loss is None:
        return f"It ended before the first iteration: {told['why']}."
    said = f"Loss {loss:.6g} after {count} iterations and {told['evaluations']} evaluations"
    if beside is None:
        return f"{said}; {accuracy:.1%} test accuracy. It ended: {told['why']}."
    return (
        f"{said}; torch.optim.LBFGS in one process came to {beside['loss']:.6g} after {beside['evaluations']} "
        f"evaluations. {accuracy:.1%} test accuracy, one process {beside['test_accuracy']:.1%}. "
        f"It ended: {told['why']}."
    )


def _notes(job: Prepared, processes: int, outcome: dict[str, Any]) -> list[str]:
    told = outcome["result"]
    notes = []
    if len(told["taken"]) > 1:
        taken = ", ".join(f"{name.replace('-', ' ')} {count}" for name, count in sorted(told["taken"].items()))
        notes.append(f"Chunks of portions by who was first with them: {taken}; {told['backups']} were given to two.")
    for restart in outcome["restarts"]:
        after = "" if restart["seconds"] is None else f"; {restart['seconds']:.1f} s later it was back"
        notes.append(f"{restart['who'].capitalize()} was started again: {restart['why']}{after}.")
    cores = os.cpu_count() or 1
    if processes > cores:
        notes.append(f"{processes} processes share {cores} cores here: the seconds say nothing about as many machines.")
    if job.placement is not None and job.machines > 1:
        notes.append(f"The plan: {job.placement.verdict}")
    return notes
