"""The rows of a run's results table: one for the method, and one for the single process that it is compared with.

A row is plain data. Its columns: name; processes, threads of each; samples trained on; seconds and samples_per_s;
test_loss, test_accuracy and metrics as `Scores` has them, test_accuracy None for a task that counts no right answers;
target and time_to_target_s; staleness_mean and staleness_max of pushes; bytes_per_step of a replica; the
learning curve, the same with "seconds" and "samples" for each evaluation; and losses, (samples, loss) now and then.
"""

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from ...runtime.hosts.versions import read_cores
from ..job.job import Job
from ..units import format_number

SCORES = ("test_loss", "test_accuracy", "metrics")


def make_row(
    name: str,
    *,
    processes: int,
    threads: int,
    samples: int,
    seconds: float,
    curve: Sequence[Mapping[str, Any]],
    losses: Sequence[tuple[int, float]],
    target: float | None = None,
) -> dict[str, Any]:
    """Return a row; staleness and bytes are None until they are filled in."""
    reached = [point["seconds"] for point in curve if target is not None and (point["test_accuracy"] or 0.0) >= target]
    return {
        "name": name,
        "processes": processes,
        "threads": threads,
        "samples": samples,
        "seconds": seconds,
        "samples_per_s": samples / seconds if seconds else 0.0,
        **(dict(zip(SCORES, (None, None, {}), strict=True)) | {name: p[name] for p in curve[-1:] for name in SCORES}),
        "target": target,
        "time_to_target_s": reached[0] if reached else None,
        "staleness_mean": None,
        "staleness_max": None,
        "bytes_per_step": None,
        "curve": curve,
        "losses": losses,
    }


def describe_scores(scores: Mapping[str, Any]) -> str:
    """Return the scores in words: "95.2% test accuracy, test loss 0.16, perplexity 1.2"."""
    accuracy, loss = scores["test_accuracy"], scores["test_loss"]
    parts = [] if accuracy is None else [f"{accuracy:.1%} test accuracy"]
    parts += [] if loss is None else [f"test loss {loss:.4g}"]
    return ", ".join([*parts, *(f"{name} {value:.4g}" for name, value in scores["metrics"].items())])


def capitalise(sentence: str) -> str:
    """Return a sentence that begins with a capital letter."""
    return sentence[:1].upper() + sentence[1:]


def describe_setup(job: Job, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return notes on what to think of the seconds of a run, and on its plan. rows: of the table, its own the last."""
    notes, cores, processes = list[str](), read_cores(), rows[-1]["processes"]
    if processes > cores:
        notes.append(
            f"{processes} processes share {cores} cores: timings here do not predict a real cluster; "
            "what is learned does carry over."
        )
    if job.placement is None or job.machines == 1:
        return notes
    notes.append(f"The plan: {job.placement.verdict}")
    is_of_part = job.cluster is not None and all(cores.whole_speedup is None for cores in job.cluster.shared)
    if is_of_part and len(rows) > 1 and job.worker_threads < rows[0]["threads"]:
        planned, had = (format_number(count, "thread") for count in (job.worker_threads, rows[0]["threads"]))
        notes.append(f"The plan's one machine has {planned}; the one process that was trained here had {had}.")
    return notes


def describe_restart(restart: Mapping[str, Any]) -> str:
    """Return a sentence about a restarted role (see `RestartLog`)."""
    at_step = "" if restart["step"] is None else f" at step {restart['step']}"
    missing = "" if restart["seconds"] is None else f"; it was back after {restart['seconds']:.1f} s"
    return f"{restart['role'].capitalize()} was restarted{at_step}: {restart['reason']}{missing}."


def list_versions() -> dict[str, str]:
    """Return the versions of what a result depends on."""
    packages = {name: version(name) for name in ("cutset", "torch", "pyzmq")}
    return packages | {"python": platform.python_version()}
