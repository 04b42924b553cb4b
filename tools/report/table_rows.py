"""The tables that pages and the terminal share, as rows of formatted cells: results of a run, candidates of a plan."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...partition.placement.placement_file import CandidateScore, Placement
from ..units import NONE, format_bytes, format_percent, format_seconds

_BEFORE_SCORES = ("run", "processes", "threads each", "samples", "seconds", "samples/s")
_TARGET, _AFTER_TARGET = "time to target", ("staleness mean / max", "bytes a step")
_TEST_LOSS, _TEST_ACCURACY = "test loss", "test accuracy"


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
    "issued twice",
)


def format_iteration(iteration: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of one iteration of a batch method, under `ITERATION_COLUMNS`."""
    return (
        str(iteration["number"]),
        f"{iteration['loss']:.8g}",
        f"{iteration['gradient']:.3g}",
        f"{iteration['step']:.3g}",
        str(iteration["evaluations"]),
        format_seconds(iteration["seconds"]),
        str(iteration["round_trips"]),
        format_bytes(iteration["bytes"]),
        " / ".join(str(count) for _, count in sorted(iteration["taken"].items(), key=_parse_replica)) or NONE,
        str(iteration["backups"]),
    )


def _parse_replica(item: tuple[str, int]) -> int:
    """Return the number of the replica of "worker-3"."""
    return int(item[0].partition("-")[2])


def sample_iterations(iterations: Sequence[Mapping[str, Any]], count: int = 12) -> list[Mapping[str, Any]]:
    """Return at most `count` iterations: the first, the last, and some between."""
    last = len(iterations) - 1
    kept = {round(n * last / (count - 1)) for n in range(count)} if last >= count else set(range(last + 1))
    return [iterations[n] for n in sorted(kept)]


def format_results(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the headings of the result table, and the cells of its rows. What no row has measured has no column."""
    metrics = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    scores = [_TEST_ACCURACY] if any(row["test_accuracy"] is not None for row in rows) else []
    scores += [_TEST_LOSS] if any(row["test_loss"] is not None for row in rows) else []
    target = [_TARGET] if any(row.get("target") is not None for row in rows) else []
    return (*_BEFORE_SCORES, *scores, *metrics, *target, *_AFTER_TARGET), [
        _format_result(row, [*scores, *metrics], has_target=bool(target)) for row in rows
    ]


def _format_score(row: Mapping[str, Any], name: str) -> str:
    if name == _TEST_ACCURACY:
        return NONE if row["test_accuracy"] is None else format_percent(row["test_accuracy"], digits=1)
    value = row["test_loss"] if name == _TEST_LOSS else row["metrics"].get(name)
    return NONE if value is None else f"{value:.4g}"


def _format_result(row: Mapping[str, Any], scores: Sequence[str], *, has_target: bool) -> tuple[str, ...]:
    mean, largest = row.get("staleness_mean"), row.get("staleness_max")
    return (
        str(row["name"]),
        str(row["processes"]),
        str(row["threads"]),
        str(row["samples"]),
        f"{row['seconds']:.1f}",
        f"{row['samples_per_s']:.0f}",
        *(_format_score(row, name) for name in scores),
        *([_format_target(row)] if has_target else []),
        NONE if mean is None or largest is None else f"{mean:.2f} / {largest}",
        format_bytes(row.get("bytes_per_step")),
    )


def _format_target(row: Mapping[str, Any]) -> str:
    target, reached = row.get("target"), row.get("time_to_target_s")
    if target is None:
        return NONE
    return "not reached" if reached is None else f"{format_seconds(reached)} to {format_percent(target)}"


def format_worker(worker: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of what a worker did with the shards, under `WORKER_COLUMNS`."""
    return (
        str(worker["name"]),
        str(worker["steps"]),
        str(worker["fetches"]),
        str(worker["pushes"]),
        format_seconds(worker["fetch_s"]),
        format_seconds(worker["push_s"]),
        format_percent(worker["blocked"]),
        f"{worker['skew_mean']:.2f} / {worker['skew_max']}" if worker["fetches"] else NONE,
    )


def format_shard(shard: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of what a shard did, under `SHARD_COLUMNS`."""
    return (
        str(shard["name"]),
        *(str(shard[name]) for name in ("pushes", "updates", "late", "duplicates")),
        NONE if shard["rate"] is None else f"{shard['rate']:.3g}",
        str(shard["clock_gap"]),
        *(format_bytes(shard[name]) for name in ("bytes_in", "bytes_out")),
    )


def rank_candidates(placement: Placement) -> list[CandidateScore]:
    """Order the candidates by predicted step, those that fit before those that do not."""
    return sorted(placement.candidates, key=lambda score: (not score.fits, score.step_s, score.name))


def is_chosen(score: CandidateScore, placement: Placement) -> bool:
    """Whether a score is that of the chosen plan: the same name on as many machines."""
    return (score.name, score.machines) == (placement.winner, len(placement.machines))
