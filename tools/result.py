"""Puts the result of a run together: rows to compare, staleness, links, a verdict and notes (see tools/report.py)."""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from statistics import median
from typing import Any

import msgspec

from .course import worker_name
from .explained import explained, in_words
from .prepare import Prepared
from .recorded import Recorded
from .typical import typical

CLEARLY, CLEARLY_S = 1.5, 0.005  # times the others' time, and seconds above it: such a worker is named


def compared(
    job: Prepared, baseline: dict[str, Any] | None, outcome: dict[str, Any], spans: Recorded = ()
) -> dict[str, Any]:
    """The result as plain data.

    baseline: what the one-process run returned, if any; outcome: what the method's did; spans: steps that replica 0
    recorded.
    """
    rows = [] if baseline is None else [_row(job, "one process", baseline, processes=1)]
    of = f"{job.machines} machines x {job.options.replicas} replicas, {job.options.shards} shards"
    name = f"{job.options.method.name}, {of}"
    workers = outcome["workers"]
    row = _row(job, name, outcome, processes=job.machines * job.options.replicas + job.options.shards)
    late = _staleness(outcome["shards"])
    links = _links(workers)
    row["staleness_mean"], row["staleness_max"] = (
        _mean(late),
        max((int(t) for h in late.values() for t in h), default=0),
    )
    # A replica that was started again counted only since then.
    steps = sum(workers[worker_name(r, 0)]["steps"] for r in range(job.options.replicas))
    row["bytes_per_step"] = sum(link["bytes"] for link in links) / steps if steps else None
    rows.append(row)
    return {
        "task": job.options.spec.model,
        "test_accuracy": row["test_accuracy"],
        "verdict": _verdict(job, rows),
        "notes": [*_notes(job, rows), *map(_restart, outcome["restarts"]), *_slowest(workers)],
        "rows": rows,
        "staleness": late,
        "links": links,
        "restarts": outcome["restarts"],
        "work_s": {name: worker["step_s"] for name, worker in workers.items()},
        "measured": _measured(job, spans),
        "settings": _settings(job),
        "versions": {name: version(name) for name in ("cutset", "torch", "pyzmq")}
        | {"python": platform.python_version()},
        "out": str(job.options.out),
    }


def _measured(job: Prepared, spans: Recorded) -> dict[str, Any] | None:
    """The typical step, where the time of the machines went, and that in words; None where no step was recorded."""
    step = typical(spans, job.programs)
    if step is None or job.placement is None:
        return None
    names, predicted_s = [m.name for m in job.placement.machines], job.placement.predicted.step_s
    why = explained(spans, names, predicted_s=predicted_s, evaluate_every=job.course.evaluate_every)
    words = [] if why is None else in_words(why)
    return {"typical": msgspec.to_builtins(step), "time": msgspec.to_builtins(why), "why": words}


def _row(job: Prepared, name: str, outcome: dict[str, Any], *, processes: int) -> dict[str, Any]:
    curve, seconds = outcome["curve"], outcome["seconds"]
    samples = job.course.steps * job.course.replicas * job.course.batch
    target = job.options.target
    reached = [point["seconds"] for point in curve if target is not None and point["test_accuracy"] >= target]
    return {
        "name": name,
        "processes": processes,
        "threads": job.worker_threads,
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
                histogram = out.setdefault(worker.partition("+")[0], {})
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


def _restart(restart: dict[str, Any]) -> str:
    back = "" if restart["seconds"] is None else f"; {restart['seconds']:.1f} s later it trained again"
    return f"Replica {restart['replica']} was started again at step {restart['step']}: {restart['why']}{back}."


def _slowest(workers: dict[str, dict[str, Any]]) -> list[str]:
    """Names the worker whose own work takes clearly longest, if there is one."""
    work_s = {name: worker["step_s"] for name, worker in workers.items() if worker["step_s"]}
    if len(work_s) < 2:
        return []
    slowest = max(work_s, key=lambda name: work_s[name])
    others_s = median(seconds for name, seconds in work_s.items() if name != slowest)
    if work_s[slowest] < max(CLEARLY * others_s, CLEARLY_S + others_s):
        return []
    return [
        f"{slowest} was the slowest: {1000 * work_s[slowest]:.1f} ms of work a step without what it waited for, "
        f"{work_s[slowest] / others_s:.1f} times the others' median."
    ]


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
