"""The result of a run by a parameter-server method: results table, staleness, links, a verdict and notes.

The report (tools/report) and result.json are made from it.
"""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import msgspec

from ...errors import CutsetError
from ...partition.cluster.machines import Cluster
from ..job.divergence import DivergenceRetry
from ..job.job import Job
from ..run_folder import BEST_WEIGHTS
from ..run_listener import ALONE
from ..task.plan_request import DESKTOP
from ..units import describe_processes
from .bottleneck import describe_explanation, explain_steps
from .mispredictions import describe_mispredictions, find_mispredictions
from .recorded_steps import RecordedSpans, measure_typical_step
from .results_table import (
    SCORES,
    capitalise,
    describe_restart,
    describe_scores,
    describe_setup,
    list_versions,
    make_row,
)
from .server_statistics import (
    compute_mean_staleness,
    count_staleness,
    describe_servers,
    find_max_staleness,
    summarize_servers,
)

# Statistics of the shards that are columns of the results table.
SERVER_COLUMNS = ("blocked", "skew_mean", "skew_max", "rate", "late", "duplicates", "clock_gap")
MIN_LOSSES = 3  # at either end of the run, to compare
MIN_STALENESS, WORSE = 0.5, 0.02  # updates; of the accuracy: less is not remarked
# A worker is named as the slowest if its work in a step takes this many times the others', and seconds more.
SLOW_RATIO, SLOW_S = 1.5, 0.005


def compare_runs(
    job: Job,
    baseline: dict[str, Any] | None,
    outcome: dict[str, Any],
    spans: RecordedSpans = (),
    retry: DivergenceRetry | None = None,
) -> dict[str, Any]:
    """Return the result of a run as plain data.

    Args:
        baseline: what the one-process run returned, if there was one.
        outcome: what the run by the method returned (`run_replicas`).
        spans: steps that replica 0 recorded.
        retry: given if the run diverged at first.
    """
    workers, shards = outcome["workers"], outcome["shards"]
    staleness, statistics, links = count_staleness(shards), summarize_servers(workers, shards), _count_links(workers)
    rows = [] if baseline is None else [_make_row(job, ALONE, baseline, processes=1)]
    name = f"{job.method.name}, {describe_processes(job.machines, job.replicas, job.shards)}"
    row = _make_row(job, name, outcome, processes=job.machines * job.replicas + job.shards)
    row["staleness_mean"], row["staleness_max"] = compute_mean_staleness(staleness), find_max_staleness(staleness)
    # The workers of a restarted replica counted only since then.
    steps = sum(worker["steps"] for name, worker in workers.items() if name.endswith(".0"))
    row["bytes_per_step"] = sum(link["bytes"] for link in links) / steps if steps else None
    row |= {name: statistics[name] for name in SERVER_COLUMNS}
    rows.append(row)
    return {
        "task": job.config.task_name,
        **{name: row[name] for name in SCORES},
        "verdict": _describe_verdict(rows),
        "notes": [
            *_describe_job(job, rows),
            *([] if retry is None else [retry.describe()]),
            *_describe_selection(job, outcome),
            *_describe_rising_loss(outcome["losses"], job.optimizer.lr),
            *_describe_stale_pushes(rows),
            *map(describe_restart, outcome["restarts"]),
            *_describe_participation(outcome["participation"]),
            *_describe_slowest(workers),
        ],
        "rows": rows,
        "staleness": staleness,
        "server_statistics": statistics,
        "server_findings": describe_servers(statistics, lr=job.serving.optimizer.lr),
        "links": links,
        "best": outcome["best"],
        "divergence_retry": None if retry is None else asdict(retry),
        "restarts": outcome["restarts"],
        "participation": outcome["participation"],
        "work_s": {name: worker["step_s"] for name, worker in workers.items()},
        "measured": _measure(job, spans),
        "settings": _list_settings(job),
        "versions": list_versions(),
        "out": str(job.out),
    }


def _measure(job: Job, spans: RecordedSpans) -> dict[str, Any] | None:
    """Return the typical step, its explanation, and that in sentences; None where no step was recorded."""
    step = measure_typical_step(spans, job.programs)
    if step is None or job.placement is None:
        return None
    machines, predicted_s = job.placement.machines, job.placement.predicted.step_s
    explanation = explain_steps(
        spans,
        [machine.name for machine in machines],
        predicted_s=predicted_s,
        busy_s=[machine.busy_s for machine in machines],
        evaluate_every=job.training.evaluate_every,
    )
    findings = [] if explanation is None else describe_explanation(explanation)
    cluster = _load_cluster(job)
    wrong = None if cluster is None else find_mispredictions(job.programs, spans, cluster)
    if wrong is not None:
        findings += describe_mispredictions(wrong)
    return {
        "step": msgspec.to_builtins(step),
        "time": msgspec.to_builtins(explanation),
        "mispredicted": msgspec.to_builtins(wrong),
        "findings": findings,
    }


def _load_cluster(job: Job) -> Cluster | None:
    """Return the machines that a run was planned for; None where their constants were not those of real ones."""
    request, placement = job.config.plan_request, job.placement
    if job.cluster is not None or placement is None or request.source == DESKTOP:
        return job.cluster
    try:
        return request.load_planned([machine.name for machine in placement.machines])
    except CutsetError:  # a cluster file that is gone, or has other machines
        return None


def _make_row(job: Job, name: str, outcome: dict[str, Any], *, processes: int) -> dict[str, Any]:
    return make_row(
        name,
        processes=processes,
        threads=outcome.get("threads", job.worker_threads),
        samples=outcome["samples"],
        seconds=outcome["seconds"],
        curve=outcome["curve"],
        losses=outcome["losses"],
        target=job.config.target,
    )


def _count_links(workers: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tensor bytes and messages between processes as the workers counted them, and bytes in each step."""
    links = []
    for name, outcome in workers.items():
        for peer, counts in outcome["links"].items():
            # Shards do not count: a worker counts both directions for them.
            ways = [(name, peer, "out"), (peer, name, "in")] if peer.startswith("shard") else [(name, peer, "out")]
            for source, target, way in ways:
                if not counts[f"bytes_{way}"]:
                    continue
                size, steps = counts[f"bytes_{way}"], outcome["steps"]
                link = {"source": source, "target": target, "bytes": size, "messages": counts[f"messages_{way}"]}
                links.append({**link, "bytes_per_step": size / steps if steps else None})
    return links


def _describe_verdict(rows: Sequence[dict[str, Any]]) -> str:
    last = rows[-1]
    if len(rows) == 1:
        after = f"after {last['samples']} samples in {last['seconds']:.1f} s"
        return f"{capitalise(describe_scores(last) or 'trained')} {after}."
    first = rows[0]
    ratio = last["samples_per_s"] / first["samples_per_s"]
    speed = f"throughput is {ratio:.2f}x of one process"
    if last["test_accuracy"] is None:
        alone = f"one process {_when(rows)}: {describe_scores(first)}"
        return f"{capitalise(describe_scores(last))}; {alone}; {speed}."
    points = 100 * (last["test_accuracy"] - first["test_accuracy"])
    apart = f"{abs(points):.1f} points {'above' if points >= 0 else 'below'}" if abs(points) >= 0.05 else "the same as"
    return f"{last['test_accuracy']:.1%} test accuracy, {apart} one process {_when(rows)}; {speed}."


def _when(rows: Sequence[dict[str, Any]]) -> str:
    samples = rows[0]["samples"]
    return "at the same number of samples" if samples == rows[-1]["samples"] else f"after {samples} samples"


def _describe_job(job: Job, rows: Sequence[dict[str, Any]]) -> list[str]:
    notes, training = list(job.notes), job.training
    if job.config.resume is not None:
        of_all = "" if training.is_open_ended else f" of {training.steps}"
        notes.append(
            f"Resumed from {job.config.resume} after {training.start_step}{of_all} steps of "
            f"{training.replicas * training.batch} samples; samples and seconds are those of this run."
        )
    return [*notes, *describe_setup(job, rows)]


def _describe_selection(job: Job, outcome: dict[str, Any]) -> list[str]:
    """Return notes on the best weights, and on why training ended early."""
    training, best, notes = job.training, outcome["best"], []
    done = training.start_step + outcome["samples"] // (training.replicas * training.batch)
    if done < training.steps:
        monitor = training.monitor
        is_over = monitor is not None and monitor.judge(outcome["curve"]).must_stop
        why = f": {monitor.score} was not better in {monitor.patience} evaluations" if monitor and is_over else ""
        notes.append(f"It ended early, after {done} of {training.steps} steps of each replica{why}.")
    if best is not None:
        notes.append(f"{BEST_WEIGHTS} has the best {best['score']}, {best['value']:.4g}, of {best['samples']} samples.")
    return notes


def _describe_rising_loss(losses: Sequence[tuple[int, float]], lr: float) -> list[str]:
    """Return a note if the loss ended no lower than it began; nothing if there are too few losses to tell."""
    fifth = len(losses) // 5
    if fifth < MIN_LOSSES:
        return []
    first, last = (median(loss for _, loss in some) for some in (losses[:fifth], losses[-fifth:]))
    if last < first:
        return []
    return [f"The loss ended at {last:.3g}, no lower than it began ({first:.3g}): try --lr {lr / 10:g}."]


def _describe_stale_pushes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a note where a run with stale pushes is clearly less accurate than one process."""
    first, last = rows[0], rows[-1]
    if None in (first["test_accuracy"], last["test_accuracy"]) or (last["staleness_mean"] or 0.0) < MIN_STALENESS:
        return []
    if first["test_accuracy"] - last["test_accuracy"] < WORSE:
        return []
    return [
        f"Gradients were {last['staleness_mean']:.1f} updates old on average when they were applied (staleness), which "
        "may be what costs accuracy: try a smaller --lr, or --method sync."
    ]


def _describe_participation(participation: dict[str, Any]) -> list[str]:
    """Return notes on who joined and left, who computed how many batches, and how many were lost with one."""
    notes = [f"Replica {c['replica']} {c['change']} at {c['at_s']:.1f} s." for c in participation["changes"]]
    (first, count), *others = participation.get("completed", {"0": 0}).items() or [("0", 0)]
    if others:
        rest = "".join(f", replica {replica} {count}" for replica, count in others)
        notes.append(f"Replica {first} computed {count} of {participation['batches']} batches{rest}.")
    recomputed = participation.get("recomputed", {}).items()
    return notes + [f"{n} batches were computed again after replica {r} was lost." for r, n in recomputed]


def _describe_slowest(workers: dict[str, dict[str, Any]]) -> list[str]:
    """Return a note that names the worker whose own work takes clearly longest, if there is one."""
    work_s = {name: worker["step_s"] for name, worker in workers.items() if worker["step_s"]}
    if len(work_s) < 2:
        return []
    slowest = max(work_s, key=lambda name: work_s[name])
    others_s = median(seconds for name, seconds in work_s.items() if name != slowest)
    if work_s[slowest] < max(SLOW_RATIO * others_s, SLOW_S + others_s):
        return []
    return [
        f"{slowest} was the slowest: {1000 * work_s[slowest]:.1f} ms of work per step without waiting, "
        f"{work_s[slowest] / others_s:.1f} times the others' median."
    ]


def _list_effective_settings(job: Job) -> dict[str, Any]:
    """Return what follows from method and optimizer together, where it is not the optimizer itself."""
    serving, rate = job.serving, job.method.local_rate(job.optimizer)
    settings: dict[str, Any] = {}
    if serving.optimizer != job.optimizer:
        settings["optimizer of the shards"] = str(serving.optimizer)
    if serving.aggregate:
        settings["pushes per update"] = serving.aggregate
    if rate:
        settings["rate of the workers' local steps"] = rate
    return settings


def _list_settings(job: Job) -> dict[str, Any]:
    return {
        "machines": job.machines,
        "replicas": job.replicas,
        "shards": job.shards,
        "method": str(job.method),
        "optimizer": str(job.optimizer),
        **_list_effective_settings(job),
        "compression of pushes": "none" if job.compression is None else str(job.compression),
        "epochs": job.training.epochs,
        "batch": job.training.batch,
        "steps per replica": "as long as there are samples" if job.training.is_open_ended else job.training.steps,
        "seed": job.config.seed,
        "placement": job.placement.winner if job.placement else "uncut",
    }
