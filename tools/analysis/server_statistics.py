"""How training through the shards went, as plain data and in sentences: staleness, skew, waiting, lost and late pushes.

Staleness of a push: updates that the shard applied between the fetch that the gradient was computed on and the push.
Skew of a fetch: how many versions its slices lay apart. Shards count by slice: where a shard holds several slices of a
machine, a push counts once for each.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..units import format_percent, format_seconds

Plain = dict[str, Any]
MIN_BLOCKED = 0.01  # of the time: less waiting for the shards is not mentioned


def summarize_servers(workers: Mapping[str, Plain], shards: Sequence[Plain]) -> Plain:
    """Return the statistics that `describe_servers`, the report and result.json have.

    workers, shards: what the roles returned. Among the statistics are "rate", the mean that the shards applied updates
    with, None without any; "skew_mean" and "skew_max"; and "clock_gap", the most steps that a replica was ahead of the
    slowest one when it computed a push.
    """
    by_worker = [_summarize_worker(name, outcome) for name, outcome in sorted(workers.items())]
    by_shard = [_summarize_shard(outcome) for outcome in shards]
    fetches = sum(worker["fetches"] for worker in by_worker)
    updates = sum(shard["updates"] for shard in by_shard)
    return {
        "workers": by_worker,
        "shards": by_shard,
        "blocked": _weighted_mean((w["blocked"], w["seconds"]) for w in by_worker),
        "skew_mean": _weighted_mean((w["skew_mean"], w["fetches"]) for w in by_worker) if fetches else None,
        "skew_max": max((w["skew_max"] for w in by_worker), default=0) if fetches else None,
        "rate": _weighted_mean((shard["rate"] or 0.0, shard["updates"]) for shard in by_shard) if updates else None,
        **{name: sum(shard[name] for shard in by_shard) for name in ("pushes", "late", "duplicates")},
        "clock_gap": max((shard["clock_gap"] for shard in by_shard), default=0),
    }


def describe_servers(statistics: Plain, *, lr: float) -> list[str]:
    """Return sentences about what is remarkable. lr: the rate of the optimizer that the shards have."""
    sentences = []
    if statistics["blocked"] is not None and statistics["blocked"] >= MIN_BLOCKED:
        longest = max(statistics["workers"], key=lambda worker: worker["blocked"] or 0.0)
        fetch_s, push_s = (sum(worker[f"{what}_s"] for worker in statistics["workers"]) for what in ("fetch", "push"))
        sentences.append(
            f"Workers waited for the shards {format_percent(statistics['blocked'])} of the time "
            f"({format_percent(fetch_s / (fetch_s + push_s))} of that for parameters); {longest['name']} waited "
            f"longest: {format_seconds(longest['fetch_s'] + longest['push_s'])}."
        )
    if statistics["skew_max"]:
        sentences.append(
            f"Slices of one fetch differed by {statistics['skew_mean']:.2f} versions on average "
            f"(max {statistics['skew_max']})."
        )
    if statistics["rate"] is not None and abs(statistics["rate"] - lr) > 0.005 * lr:
        sentences.append(f"The shards' mean learning rate was {statistics['rate']:.3g}; the optimizer's is {lr:g}.")
    if statistics["late"]:
        sentences.append(
            f"{statistics['late']} of {statistics['pushes']} pushes came too late for their update and were dropped."
        )
    if statistics["duplicates"]:
        sentences.append(f"{statistics['duplicates']} pushes arrived more than once and were applied once.")
    return sentences


def _summarize_worker(name: str, outcome: Plain) -> Plain:
    client, seconds = outcome["client"], outcome["seconds"]
    fetch_s, push_s = client["fetch_blocked_s"], client["push_blocked_s"]
    return {
        "name": name,
        "seconds": seconds,
        "steps": outcome["steps"],
        "fetches": client["fetches"],
        "pushes": client["pushes"],
        "fetch_s": fetch_s,
        "push_s": push_s,
        "blocked": min(1.0, (fetch_s + push_s) / seconds) if seconds > 0 else None,
        "skew_mean": client["skew"]["mean"],
        "skew_max": client["skew"]["max"],
    }


def _summarize_shard(outcome: Plain) -> Plain:
    slices = outcome["slices"]
    updates = sum(piece["updates"] for piece in slices)
    counters = ("pushes", "late", "duplicates", "bytes_in", "bytes_out")
    return {
        "name": f"shard-{outcome['shard']}",
        "updates": updates,
        "rate": _weighted_mean((piece["rate"] or 0.0, piece["updates"]) for piece in slices) if updates else None,
        "clock_gap": max((piece["clock_gap"] for piece in slices), default=0),
        **{name: sum(piece[name] for piece in slices) for name in counters},
        "staleness": count_staleness([outcome]),
    }


def count_staleness(shards: Iterable[Plain]) -> dict[str, dict[str, int]]:
    """Return a histogram for each worker: pushes by staleness, over all these shards and the worker's incarnations."""
    histograms: dict[str, dict[str, int]] = {}
    for piece in (piece for shard in shards for piece in shard["slices"]):
        for worker, counts in piece["staleness"].items():
            histogram = histograms.setdefault(worker.partition("+")[0], {})
            for tau, pushes in counts["histogram"]:
                histogram[str(tau)] = histogram.get(str(tau), 0) + pushes
    return dict(sorted(histograms.items()))


def compute_mean_staleness(histograms: Mapping[str, Mapping[str, int]]) -> float | None:
    """Return the mean staleness of all pushes, None without any."""
    return _weighted_mean((int(tau), pushes) for histogram in histograms.values() for tau, pushes in histogram.items())


def find_max_staleness(histograms: Mapping[str, Mapping[str, int]]) -> int:
    """Return the largest staleness of a push, 0 without any."""
    return max((int(tau) for histogram in histograms.values() for tau in histogram), default=0)


def _weighted_mean(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    """Return the mean of (value, weight) without values that are None; None if the weights are 0."""
    known = [(value, weight) for value, weight in pairs if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None
