"""When a run was planned and started, and had made a step, is read of its metrics; other commands have an end alone."""

import json

import pytest

from cutset.errors import CutsetError
from cutset.tools.bench.training.start_times import PLAIN_TORCH, StartTimes, find_moments, measure, tabulate
from cutset.tools.units import NONE


def lines(*events: tuple[str, float]) -> str:
    return "".join(json.dumps({"event": event, "time": time}) + "\n" for event, time in events)


def test_the_first_of_each_event_counts() -> None:
    metrics = lines(("begin", 1.0), ("roles", 2.0), ("step", 2.5), ("roles", 3.0), ("step", 3.5), ("end", 4.0))
    assert find_moments(metrics) == [1.0, 2.0, 2.5]


def test_a_row_has_medians_and_all_rounds() -> None:
    row = StartTimes("train", (1.0, 2.0, 9.0), (3.0, 3.0, 3.0), (4.0, 5.0, 6.0), (7.0, 7.0, 8.0))
    (plain,) = tabulate([row]).to_dict()["rows"]
    assert (plain["planned_s"], plain["started_s"], plain["stepped_s"], plain["cpu_s"]) == (2.0, 3.0, 5.0, 7.0)
    assert plain["planned_rounds"] == (1.0, 2.0, 9.0)


def test_what_does_not_train_has_an_end_alone() -> None:
    (cells,) = tabulate([StartTimes("--help", (), (), (0.2,), (0.1,))]).format_cells()
    assert cells == ["--help", NONE, NONE, "200 ms", "100 ms"]


@pytest.mark.slow
def test_every_command_is_timed_in_order() -> None:
    told = list[str]()
    rows = measure(told.append, rounds=1, runs=[("--no-baseline",)])
    assert [row.command for row in rows[:2]] == [PLAIN_TORCH, "--help"]
    assert len(told) == len(rows) == 4
    planned, started, stepped = (series[0] for series in (rows[3].planned, rows[3].started, rows[3].stepped))
    assert rows[0].stepped[0] < stepped, "plain torch has nothing to plan"
    assert 0 < planned < started < stepped


@pytest.mark.run
def test_a_command_that_fails_is_an_error_with_what_it_said() -> None:
    with pytest.raises(CutsetError, match="the measured command failed"):
        measure(lambda line: None, task="cutset.models:nothing", rounds=1, runs=[])
