"""The tables that pages and terminal share, as rows of words: results of a run, and candidates of a plan."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...partition.placement.placement_file import Placement, Score
from ..units import NONE, bytes_text, percent_text, seconds_text

RESULT_COLUMNS = (
    "run",
    "processes",
    "threads each",
    "samples",
    "seconds",
    "samples/s",
    "test accuracy",
    "time to target",
    "staleness mean / max",
    "bytes a step",
)


WORKER_COLUMNS = (
    "worker",
    "steps",
    "fetches",
    "pushes",
    "waited for fetches",
    "for pushes",
    "of its time",
    "skew mean / max",
)
SHARD_COLUMNS = (
    "shard",
    "pushes",
    "updates",
    "late",
    "duplicates",
    "mean rate",
    "clock gap",
    "bytes in",
    "bytes out",
)


ITERATION_COLUMNS = (
    "iteration",
    "loss",
    "largest gradient",
    "step",
    "evaluations",
    "seconds",
    "round trips",
    "to and from shards",
    "chunks by replica",
    "given to two",
)


def iteration_cells(iteration: Mapping[str, Any]) -> tuple[str, ...]:
    """One iteration of a batch method in words, under `ITERATION_COLUMNS`; evaluations are since the beginning."""
    return (
        str(iteration["number"]),
        f"{iteration['loss']:.8g}",
        f"{iteration['gradient']:.3g}",
        f"{iteration['step']:.3g}",
        str(iteration["evaluations"]),
        seconds_text(iteration["seconds"]),
        str(iteration["round_trips"]),
        bytes_text(iteration["bytes"]),
        " / ".join(str(count) for _, count in sorted(iteration["taken"].items(), key=_number)) or NONE,
        str(iteration["backups"]),
    )


def _number(taken: tuple[str, int]) -> int:
    """Of the replica of "worker-3"."""
    return int(taken[0].partition("-")[2])


def few(iterations: Sequence[Mapping[str, Any]], most: int = 12) -> list[Mapping[str, Any]]:
    """The first and the last of them, and some between."""
    last = len(iterations) - 1
    kept = {round(n * last / (most - 1)) for n in range(most)} if last >= most else set(range(last + 1))
    return [iterations[n] for n in sorted(kept)]


def result_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """One row of the result table in words, under `RESULT_COLUMNS`."""
    target = "" if row.get("target") is None else f" to {percent_text(row['target'])}"
    reached = row.get("time_to_target_s")
    mean, most = row.get("staleness_mean"), row.get("staleness_max")
    return (
        str(row["name"]),
        str(row["processes"]),
        str(row["threads"]),
        str(row["samples"]),
        f"{row['seconds']:.1f}",
        f"{row['samples_per_s']:.0f}",
        percent_text(row["test_accuracy"], digits=1),
        "not reached"
        if reached is None and target
        else NONE
        if reached is None
        else f"{seconds_text(reached)}{target}",
        NONE if mean is None or most is None else f"{mean:.2f} / {most}",
        bytes_text(row.get("bytes_per_step")),
    )


def worker_cells(worker: Mapping[str, Any]) -> tuple[str, ...]:
    """What a worker did with the shards, under `WORKER_COLUMNS`."""
    return (
        str(worker["name"]),
        str(worker["steps"]),
        str(worker["fetches"]),
        str(worker["pushes"]),
        seconds_text(worker["fetch_s"]),
        seconds_text(worker["push_s"]),
        percent_text(worker["blocked"]),
        f"{worker['skew_mean']:.2f} / {worker['skew_max']}" if worker["fetches"] else NONE,
    )


def shard_cells(shard: Mapping[str, Any]) -> tuple[str, ...]:
    """What a shard did, under `SHARD_COLUMNS`."""
    return (
        str(shard["name"]),
        *(str(shard[name]) for name in ("pushes", "updates", "late", "duplicates")),
        NONE if shard["rate"] is None else f"{shard['rate']:.3g}",
        str(shard["clock_gap"]),
        *(bytes_text(shard[name]) for name in ("bytes_in", "bytes_out")),
    )


def ranked(placement: Placement) -> list[Score]:
    """Candidates by predicted step, those that fit before those that do not."""
    return sorted(placement.candidates, key=lambda score: (not score.fits, score.step_s, score.name))


def is_chosen(score: Score, placement: Placement) -> bool:
    """Whether a score is that of the plan that was chosen: the same name on so many machines."""
    return (score.name, score.machines) == (placement.winner, len(placement.machines))
