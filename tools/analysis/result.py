"""Puts the result of a run together: rows to compare, staleness, links, a verdict and notes (see tools/report.py)."""

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from statistics import median
from typing import Any

import msgspec

from ..training.divergence_restart import Damped
from .bottleneck import explained, in_words
from ..job.prepare import Prepared
from .recorded_steps import Recorded
from .server_statistics import in_words as served_in_words
from .server_statistics import mean_staleness, served, staleness
from .typical import typical

OF_A_ROW = ("blocked", "skew_mean", "skew_max", "rate", "late", "duplicates", "clock_gap")  # of what was served
LOSSES_LEAST = 3  # at either end, to compare
CLEARLY, CLEARLY_S = 1.5, 0.005  # times the others' time, and seconds above it: such a worker is named


def compared(
    job: Prepared,
    baseline: dict[str, Any] | None,
    outcome: dict[str, Any],
    spans: Recorded = (),
    damped: Damped | None = None,
) -> dict[str, Any]:
    """The result as plain data.

    baseline: what the one-process run returned, if any; outcome: what the method's did; spans: steps that replica 0
    recorded; damped: that it diverged at first.
    """
    rows = [] if baseline is None else [_row(job, "one process", baseline, processes=1)]
    of = f"{job.machines} machines x {job.options.replicas} replicas, {job.options.shards} shards"
    name = f"{job.options.method.name}, {of}"
    workers = outcome["workers"]
    row = _row(job, name, outcome, processes=job.machines * job.options.replicas + job.options.shards)
    late, through_shards = staleness(outcome["shards"]), served(workers, outcome["shards"])
    links = _links(workers)
    row["staleness_mean"], row["staleness_max"] = (
        mean_staleness(late),
        max((int(t) for h in late.values() for t in h), default=0),
    )
    # A replica that was started again counted only since then.
    steps = sum(worker["steps"] for name, worker in workers.items() if name.endswith(".0"))
    row["bytes_per_step"] = sum(link["bytes"] for link in links) / steps if steps else None
    row |= {name: through_shards[name] for name in OF_A_ROW}
    rows.append(row)
    return {
        "task": job.options.spec.model,
        "test_accuracy": row["test_accuracy"],
        "verdict": _verdict(job, rows),
        "notes": [
            *_notes(job, rows),
            *([] if damped is None else [damped.in_words()]),
            *_rising(outcome["losses"], job.options.rule.lr),
            *map(_restart, outcome["restarts"]),
            *map(_shard_restart, outcome["shard_restarts"]),
            *_shares(outcome["shares"]),
            *_slowest(workers),
        ],
        "rows": rows,
        "staleness": late,
        "served": through_shards,
        "served_why": served_in_words(through_shards, lr=job.serving.rule.lr),
        "links": links,
        "damped": None if damped is None else asdict(damped),
        "restarts": outcome["restarts"],
        "shard_restarts": outcome["shard_restarts"],
        "shares": outcome["shares"],
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
    samples = (job.course.steps - job.course.first) * job.course.replicas * job.course.batch  # of this run alone
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


def _links(workers: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Tensor bytes and messages between processes as the workers counted them, and bytes in each of their steps."""
    links = []
    for name, outcome in workers.items():
        for peer, counts in outcome["links"].items():
            ways = [(name, peer, "out"), (peer, name, "in")] if peer.startswith("shard") else [(name, peer, "out")]
            for source, target, way in ways:
                if not counts[f"bytes_{way}"]:
                    continue
                size, steps = counts[f"bytes_{way}"], outcome["steps"]
                link = {"source": source, "target": target, "bytes": size, "messages": counts[f"messages_{way}"]}
                links.append({**link, "bytes_per_step": size / steps if steps else None})
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
    if job.options.resume is not None:
        of = f"{job.course.steps} steps of {job.course.replicas * job.course.batch} samples"
        notes.append(
            f"It goes on from {job.options.resume} after {job.course.first} of {of}; "
            "samples and seconds are those of this run."
        )
    cores, processes = os.cpu_count() or 1, rows[-1]["processes"]
    if processes > cores:
        notes.append(
            f"{processes} processes share {cores} cores here: the seconds say nothing about as many machines, "
            "the accuracy does."
        )
    if job.placement is not None and job.machines > 1:
        notes.append(f"The plan: {job.placement.verdict}")
    return notes


def _rising(losses: Sequence[tuple[int, float]], lr: float) -> list[str]:
    """Says so where the loss ended no lower than it began; of few losses nothing can be said."""
    fifth = len(losses) // 5
    if fifth < LOSSES_LEAST:
        return []
    first, last = (median(loss for _, loss in some) for some in (losses[:fifth], losses[-fifth:]))
    if last < first:
        return []
    return [f"The loss ended at {last:.3g}, no lower than it began ({first:.3g}): try --lr {lr / 10:g}."]


def _restart(restart: dict[str, Any]) -> str:
    back = "" if restart["seconds"] is None else f"; {restart['seconds']:.1f} s later it trained again"
    return f"Replica {restart['replica']} was started again at step {restart['step']}: {restart['why']}{back}."


def _shares(shares: dict[str, Any]) -> list[str]:
    """Who joined and left, who computed how many of the batches, and how many of them may have been computed twice."""
    said = [f"Replica {c['replica']} {c['how']} at {c['at_s']:.1f} s." for c in shares["changes"]]
    (first, count), *others = shares.get("taken", {"0": 0}).items() or [("0", 0)]
    if others:
        rest = "".join(f", replica {replica} {count}" for replica, count in others)
        said.append(f"Replica {first} took {count} of {shares['batches']} batches{rest}.")
    again = shares.get("repeated", {}).items()
    return said + [f"{n} batches at most were computed again after replica {r} was lost." for r, n in again]


def _shard_restart(restart: dict[str, Any]) -> str:
    back = "" if restart["seconds"] is None else f"; {restart['seconds']:.1f} s later it served again"
    return f"Shard {restart['shard']} was started again from its journal: {restart['why']}{back}."


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


def _effective(job: Prepared) -> dict[str, Any]:
    """What follows from method and rule together, where it is not the rule itself."""
    options, shards = job.options, job.serving
    rate = options.method.local_rate(options.rule)
    found: dict[str, Any] = {}
    if shards.rule != options.rule:
        found["rule of the shards"] = str(shards.rule)
    if shards.gather:
        found["pushes of an update"] = shards.gather
    if rate:
        found["rate of workers' own steps"] = rate
    return found


def _settings(job: Prepared) -> dict[str, Any]:
    options = job.options
    return {
        "machines": job.machines,
        "replicas": options.replicas,
        "shards": options.shards,
        "method": str(options.method),
        "rule": str(options.rule),
        **_effective(job),
        "compression of pushes": "none" if options.compression is None else str(options.compression),
        "epochs": options.epochs,
        "batch": job.course.batch,
        "steps of each replica": job.course.steps,
        "seed": options.seed,
        "placement": job.placement.winner if job.placement else "uncut",
    }
