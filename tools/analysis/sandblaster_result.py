"""The result of a Sandblaster run, as plain data; like that of `compare_runs`, with iterations instead of staleness."""

from typing import Any

from ...ps.methods.sandblaster import Sandblaster
from ..job.job import Job
from ..job.portion_size import describe_left_out, portions_of_job
from ..sandblaster.supervisor import THREADS
from ..units import describe_processes
from .results_table import capitalise, describe_restart, describe_scores, describe_setup, list_versions, make_row

BASELINE_NAME = "one process, torch's L-BFGS"


def summarize_sandblaster(job: Job, method: Sandblaster, outcome: dict[str, Any]) -> dict[str, Any]:
    """Return the result. outcome: what `run_sandblaster` returned."""
    coordinator, iterations, baseline = outcome["coordinator"], outcome["iterations"], outcome["baseline"]
    portions, processes = portions_of_job(job), job.machines * job.replicas + job.shards + 1
    rows = [] if baseline is None else [_make_baseline_row(job, baseline, portions.samples)]
    row = _make_row(job, method, outcome, processes)
    rows.append(row)
    loss = iterations[-1]["loss"] if iterations else None
    return {
        "task": job.config.task_name,
        "test_accuracy": row["test_accuracy"],
        "test_loss": row["test_loss"],
        "metrics": row["metrics"],
        "verdict": _describe_verdict(coordinator, len(iterations), loss, row, baseline),
        "notes": [
            *job.notes,
            *describe_left_out(job),
            *_describe_chunks(coordinator),
            *map(describe_restart, outcome["restarts"]),
            *describe_setup(job, rows),
        ],
        "rows": rows,
        "iterations": iterations,
        "end_reason": coordinator["reason"],
        "coordinator": coordinator,
        "baseline": baseline,
        "staleness": {},
        "links": [],
        "restarts": outcome["restarts"],
        "measured": None,
        "shards": [{k: v for k, v in shard.items() if k != "file"} for shard in outcome["shards"]],
        "settings": {
            "machines": job.machines,
            "replicas": job.replicas,
            "shards": job.shards,
            "method": str(method),
            "samples": portions.samples,
            "samples of a portion": portions.size,
            "portions": portions.count,
            "seed": job.config.seed,
            "placement": job.placement.winner if job.placement else "uncut",
        },
        "versions": list_versions(),
        "out": str(job.out),
    }


def _make_row(job: Job, method: Sandblaster, outcome: dict[str, Any], processes: int) -> dict[str, Any]:
    """Return the row of this run alone: what a resumed run replays from its log does not count."""
    coordinator, iterations = outcome["coordinator"], outcome["iterations"]
    samples_per_evaluation = coordinator["samples"] / max(1, coordinator["evaluations"])
    replayed = max((one["evaluations"] for one in iterations if one["replayed"]), default=0)
    samples = round(coordinator["samples"] - replayed * samples_per_evaluation)
    seconds = outcome["seconds"]
    row = make_row(
        f"{method.name}, {describe_processes(job.machines, job.replicas, job.shards)}",
        processes=processes,
        threads=THREADS,
        samples=samples,
        seconds=seconds,
        curve=[{"seconds": seconds, "samples": samples, **outcome["scores"]}],
        losses=[(round(one["evaluations"] * samples_per_evaluation), one["loss"]) for one in iterations],
    )
    steps = max(1, sum(not one["replayed"] for one in iterations))
    row["bytes_per_step"] = sum(shard["bytes_in"] + shard["bytes_out"] for shard in outcome["shards"]) / steps
    return row


def _make_baseline_row(job: Job, baseline: dict[str, Any], samples_per_evaluation: int) -> dict[str, Any]:
    samples, seconds = round(baseline["evaluations"] * samples_per_evaluation), baseline["seconds"]
    point = {"seconds": seconds, "samples": samples, **baseline["scores"]}
    return make_row(
        BASELINE_NAME,
        processes=1,
        threads=baseline["threads"],
        samples=samples,
        seconds=seconds,
        curve=[point],
        losses=[],
    )


def _describe_verdict(
    coordinator: dict[str, Any], count: int, loss: float | None, row: dict[str, Any], baseline: dict[str, Any] | None
) -> str:
    if loss is None:
        return f"It ended before the first iteration: {coordinator['reason']}."
    start = f"Loss {loss:.6g} after {count} iterations and {coordinator['evaluations']} evaluations"
    scores = describe_scores(row)
    if baseline is None:
        return f"{start}; {scores}. It ended: {coordinator['reason']}."
    return (
        f"{start}; torch.optim.LBFGS in one process reached {baseline['loss']:.6g} after {baseline['evaluations']} "
        f"evaluations. {capitalise(scores)}; one process: {describe_scores(baseline['scores'])}. "
        f"It ended: {coordinator['reason']}."
    )


def _describe_chunks(coordinator: dict[str, Any]) -> list[str]:
    """Return a note on how many chunks of portions each replica computed, if there are several."""
    computed = coordinator["taken"]
    if len(computed) < 2:
        return []
    by_replica = ", ".join(f"{name.replace('-', ' ')} {count}" for name, count in sorted(computed.items()))
    return [f"Chunks of portions by who computed them first: {by_replica}; {coordinator['backups']} had a backup."]
