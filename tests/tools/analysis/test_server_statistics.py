"""What training through the shards was like: sums over slices, shares of time, and words where there is news."""

from typing import Any

import pytest

from cutset.tools.analysis.server_statistics import (
    compute_mean_staleness,
    count_staleness,
    describe_servers,
    summarize_servers,
)
from cutset.tools.figures.staleness import render_staleness_heatmap, render_waiting_bars


def worker(seconds: float, fetch_s: float, push_s: float, *, fetches: int = 10, skew: float = 0.0) -> dict[str, Any]:
    client = {"fetches": fetches, "pushes": 10, "fetch_blocked_s": fetch_s, "push_blocked_s": push_s}
    client["skew"] = {"fetches": fetches, "mean": skew, "max": round(2 * skew)}
    return {"seconds": seconds, "steps": 10, "client": client}


def piece(taus: dict[str, list[tuple[int, int]]], **given: Any) -> dict[str, Any]:
    plain = {"pushes": 10, "updates": 10, "late": 0, "duplicates": 0, "rate": 0.1, "clock_gap": 0}
    histograms = {name: {"histogram": histogram} for name, histogram in taus.items()}
    return {**plain, "bytes_in": 5, "bytes_out": 7, "staleness": histograms, **given}


def shard(index: int, *slices: dict[str, Any]) -> dict[str, Any]:
    return {"shard": index, "slices": list(slices)}


def test_staleness_is_added_up_over_the_slices_of_a_worker() -> None:
    shards = [shard(0, piece({"b": [(0, 2), (3, 1)]}), piece({"a": [(1, 4)]})), shard(1, piece({"b+1": [(0, 5)]}))]
    late = count_staleness(shards)
    assert late == {"a": {"1": 4}, "b": {"0": 7, "3": 1}}
    assert list(late) == ["a", "b"]
    assert compute_mean_staleness(late) == 7 / 12
    assert compute_mean_staleness({}) is None


def test_waiting_is_a_fraction_of_the_time_of_all() -> None:
    found = summarize_servers({"w0": worker(10.0, 2.0, 1.0), "w1": worker(30.0, 3.0, 0.0)}, [])
    assert [w["blocked"] for w in found["workers"]] == [pytest.approx(0.3), pytest.approx(0.1)]
    assert found["blocked"] == pytest.approx(0.15)
    assert found["rate"] is None
    assert found["clock_gap"] == 0


def test_skew_is_weighted_by_fetches_and_rates_by_updates() -> None:
    workers = {"w0": worker(1.0, 0.0, 0.0, fetches=30, skew=1.0), "w1": worker(1.0, 0.0, 0.0, skew=3.0)}
    shards = [
        shard(0, piece({}, updates=30, rate=0.1)),
        shard(1, piece({}, updates=10, rate=0.02, late=3, clock_gap=4)),
    ]
    found = summarize_servers(workers, shards)
    assert (found["skew_mean"], found["skew_max"]) == (1.5, 6)
    assert found["rate"] == pytest.approx(0.08)
    assert (found["pushes"], found["late"], found["duplicates"], found["clock_gap"]) == (20, 3, 0, 4)
    assert found["shards"][1]["name"] == "shard-1"


def test_shards_without_updates_have_no_rate() -> None:
    found = summarize_servers({"w": worker(1.0, 0.0, 0.0, fetches=0)}, [shard(0, piece({}, updates=0, rate=None))])
    assert found["rate"] is found["skew_mean"] is found["skew_max"] is None
    assert describe_servers(found, lr=0.1) == []


def test_remarkable_statistics_are_described() -> None:
    workers = {"w0": worker(10.0, 2.0, 1.0, skew=1.0), "w1": worker(10.0, 1.0, 0.0)}
    shards = [shard(0, piece({}, rate=0.05, late=2, duplicates=1))]
    assert describe_servers(summarize_servers(workers, shards), lr=0.1) == [
        "Workers waited for the shards 20 % of the time (75 % of that for parameters); w0 waited longest: 3 s.",
        "Slices of one fetch differed by 0.50 versions on average (max 2).",
        "The shards' mean learning rate was 0.05; the optimizer's is 0.1.",
        "2 of 10 pushes came too late for their update and were dropped.",
        "1 pushes arrived more than once and were applied once.",
    ]


def test_staleness_is_drawn_for_each_worker_and_shard() -> None:
    found = summarize_servers(
        {}, [shard(0, piece({"w0": [(0, 3), (2, 1)]})), shard(1, piece({"w0": [(1, 2)], "w1": [(40, 1)]}))]
    )
    svg = render_staleness_heatmap(found["shards"])
    assert "w0 at shard-0: mean 0.50, max 2" in svg
    assert "w0 at shard-0, staleness 0–1: 3 pushes, 75 %" in svg
    assert "w1 at shard-1: mean 40.00, max 40" in svg
    assert render_staleness_heatmap([]) == render_staleness_heatmap([{"name": "shard-0", "staleness": {}}]) == ""


def test_a_bar_shows_what_a_worker_waited_for() -> None:
    svg = render_waiting_bars(
        summarize_servers({"w0": worker(10.0, 2.0, 1.0), "idle": worker(0.0, 0.0, 0.0)}, [])["workers"]
    )
    assert "w0 waited 2 s for parameters and 1 s to push in 10 s" in svg
    assert "30 %, 3 s" in svg
    assert "idle" not in svg
    assert render_waiting_bars([]) == ""
