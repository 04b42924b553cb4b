"""How training through the shards went, as plain data and in words: staleness, skew, waiting, duplicates, late pushes.

Shards count by slice: where one holds several of a machine, a push counts once for each.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..units import percent_text, seconds_text

Plain = dict[str, Any]
WORTH_SAYING = 0.01  # of the time


def served(workers: Mapping[str, Plain], shards: Sequence[Plain]) -> Plain:
    """What `in_words`, the pages and result.json tell. workers, shards: what the roles returned.

    rate: the mean that updates were applied with on the shards, None without any; skew: how many versions the slices of
    a fetch lay apart; clock_gap: the most steps that a replica was ahead of the slowest as it computed a push.
    """
    by_worker = [_worker(name, outcome) for name, outcome in sorted(workers.items())]
    by_shard = [_shard(outcome) for outcome in shards]
    fetches = sum(worker["fetches"] for worker in by_worker)
    updates = sum(shard["updates"] for shard in by_shard)
    return {
        "workers": by_worker,
        "shards": by_shard,
        "blocked": _weighted((w["blocked"], w["seconds"]) for w in by_worker),
        "skew_mean": _weighted((w["skew_mean"], w["fetches"]) for w in by_worker) if fetches else None,
        "skew_max": max((w["skew_max"] for w in by_worker), default=0) if fetches else None,
        "rate": _weighted((shard["rate"] or 0.0, shard["updates"]) for shard in by_shard) if updates else None,
        **{name: sum(shard[name] for shard in by_shard) for name in ("pushes", "late", "duplicates")},
        "clock_gap": max((shard["clock_gap"] for shard in by_shard), default=0),
    }


def in_words(found: Plain, *, lr: float) -> list[str]:
    """What of it is worth a line. lr: the rate that was asked for, of the rule that the shards have."""
    said = []
    if found["blocked"] is not None and found["blocked"] >= WORTH_SAYING:
        most = max(found["workers"], key=lambda worker: worker["blocked"] or 0.0)
        fetch_s, push_s = (sum(worker[f"{what}_s"] for worker in found["workers"]) for what in ("fetch", "push"))
        said.append(
            f"Workers waited for the shards {percent_text(found['blocked'])} of the time "
            f"({percent_text(fetch_s / (fetch_s + push_s))} of that for parameters), "
            f"{most['name']} most: {seconds_text(most['fetch_s'] + most['push_s'])}."
        )
    if found["skew_max"]:
        said.append(f"The slices of a fetch lay {found['skew_mean']:.2f} versions apart, {found['skew_max']} at most.")
    if found["rate"] is not None and abs(found["rate"] - lr) > 0.005 * lr:
        said.append(f"The shards' rate was {found['rate']:.3g} on average; the rule's is {lr:g}.")
    if found["late"]:
        said.append(f"{found['late']} of {found['pushes']} pushes came after their update was made, and were dropped.")
    if found["duplicates"]:
        said.append(f"{found['duplicates']} pushes arrived more than once, and were applied once.")
    return said


def _worker(name: str, outcome: Plain) -> Plain:
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


def _shard(outcome: Plain) -> Plain:
    slices = outcome["slices"]
    updates = sum(piece["updates"] for piece in slices)
    counted = ("pushes", "late", "duplicates", "bytes_in", "bytes_out")
    return {
        "name": f"shard-{outcome['shard']}",
        "updates": updates,
        "rate": _weighted((piece["rate"] or 0.0, piece["updates"]) for piece in slices) if updates else None,
        "clock_gap": max((piece["clock_gap"] for piece in slices), default=0),
        **{name: sum(piece[name] for piece in slices) for name in counted},
        "staleness": staleness([outcome]),
    }


def staleness(shards: Iterable[Plain]) -> dict[str, dict[str, int]]:
    """Pushes by staleness, per worker, over all these shards; a worker that was started again is the same."""
    out: dict[str, dict[str, int]] = {}
    for piece in (piece for shard in shards for piece in shard["slices"]):
        for worker, counts in piece["staleness"].items():
            histogram = out.setdefault(worker.partition("+")[0], {})
            for tau, pushes in counts["histogram"]:
                histogram[str(tau)] = histogram.get(str(tau), 0) + pushes
    return dict(sorted(out.items()))


def mean_staleness(late: Mapping[str, Mapping[str, int]]) -> float | None:
    """Of all pushes; None without any."""
    return _weighted((int(tau), pushes) for histogram in late.values() for tau, pushes in histogram.items())


def _weighted(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    """The mean of values by weight, without those that are not there; None without weight."""
    known = [(value, weight) for value, weight in pairs if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None
