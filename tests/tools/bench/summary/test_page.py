"""The page shows every benchmark: measured, in trouble, or not measured yet; and is not written over a user's file."""

import json
from pathlib import Path

import pytest

from cutset.errors import UsageError
from cutset.tools.bench.peer_comparison import SECONDS, Limit, PeerComparison
from cutset.tools.bench.summary.benchmark import Benchmark
from cutset.tools.bench.summary.collect import BenchmarkResult
from cutset.tools.bench.summary.conditions import Conditions
from cutset.tools.bench.summary.page import check_pages, describe_goals, write_pages

HERE = Conditions("some <cpu>", 2, 1 << 30, {"torch": "2", "cutset": "0.1"}, "0")
NAMES = ("step", "cluster", "later")
BENCHMARKS = [Benchmark(name, f"cutset bench {name}", "Steps.", lambda options, tell: ()) for name in NAMES]
ROWS = (
    PeerComparison("cut over 2", SECONDS, (2.0, 2.2), "torch", (1.0, 1.1), Limit(most=1.5)),
    PeerComparison("uncut", SECONDS, (1.0, 1.1), "torch", (1.0, 1.1), Limit(most=1.5)),
)
RESULTS = {
    "step": BenchmarkResult("step", HERE, {}, "2026-11-26 04:30 UTC", 5.0, ROWS),
    "cluster": BenchmarkResult("cluster", HERE, {}, "2026-11-26 04:31 UTC", 0.0, (), "E245: only root can"),
}


def test_every_form_has_every_row_and_every_trouble(tmp_path: Path) -> None:
    write_pages(tmp_path, BENCHMARKS, RESULTS)
    html, markdown = ((tmp_path / f"bench.{suffix}").read_text() for suffix in ("html", "md"))
    for text in (html, markdown):
        for part in ("cut over 2", "at most 1.50", "E245: only root can", "not measured yet", "04:30 UTC", "1 of 2"):
            assert part in text
    assert "some &lt;cpu&gt;" in html
    assert html.count('bad">no</td>') == 1, "a goal that is missed is red"
    assert "some <cpu>, 2 cores, 1 GiB; torch 2, cutset 0.1" in markdown
    data = json.loads((tmp_path / "bench.json").read_text())
    assert [one["name"] for one in data["benchmarks"]] == list(NAMES)
    assert [row["met"] for row in data["benchmarks"][0]["rows"]] == [False, True]
    assert data["benchmarks"][1]["trouble"] == "E245: only root can"
    assert data["conditions"]["cpu"] == "some <cpu>"


def test_goals_that_are_missed_are_named_by_their_benchmark() -> None:
    assert describe_goals(list(RESULTS.values())) == "1 of 2 goals are met; not all of: step."
    assert describe_goals([RESULTS["cluster"]]) == "0 of 0 goals are met."


def test_the_page_is_written_again_but_over_no_other_file(tmp_path: Path) -> None:
    write_pages(tmp_path, BENCHMARKS, RESULTS)
    check_pages(tmp_path)
    (tmp_path / "bench.md").write_text("mine")
    with pytest.raises(UsageError, match="E232"):
        check_pages(tmp_path)
