"""The bench of defaults: what it trains, and what its table says."""

import json
from pathlib import Path

import pytest
from command_line import USAGE, Cutset
from command_line import cutset as cutset

from cutset.tools.bench.training.defaults import ONE, DefaultsResult, tabulate_defaults


def test_the_table_compares_each_method_with_one_process_of_its_task() -> None:
    rows = [
        DefaultsResult("digits", ONE, 1, (0.97, 0.99)),
        DefaultsResult("digits", "sync", 2, (0.965, 0.985)),
        DefaultsResult("mnist", ONE, 1, (0.9,)),
        DefaultsResult("mnist", "sync", 2, (0.88,)),
    ]
    table = tabulate_defaults(rows)
    assert [row["behind"] for row in table.to_dict()["rows"]] == pytest.approx([0, -0.005, 0, -0.02])
    assert table.notes == ["MISSED: no method more than a point behind one process; sync is -2.0"]
    assert tabulate_defaults(rows[:2]).notes[0].startswith("met")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_trains_one_process_and_a_method(cutset: Cutset, tmp_path: Path) -> None:
    done = cutset("bench", "defaults", "--methods", "sync", "--replicas", 2, "--seeds", 1, "--json")
    one, sync = json.loads(done.out)["rows"]
    assert (one["method"], sync["method"], sync["replicas"]) == (ONE, "sync", 2)
    assert sync["accuracy"] > one["accuracy"] - 0.02


def test_odd_counts_are_refused(cutset: Cutset) -> None:
    outcome = cutset("bench", "defaults", "--replicas", "two")
    assert outcome.code == USAGE
    assert "is no number of replicas" in outcome.err
