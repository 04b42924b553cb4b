"""Results of trainings become rows beside plain torch, one process or a bound, with the goals of their commands."""

import pytest

from cutset.tools.bench.cluster.step_time import GOAL_S, StepRow
from cutset.tools.bench.summary.training import (
    compare_data,
    compare_defaults,
    compare_memory,
    compare_methods,
    compare_starts,
    compare_steps,
    compare_stragglers,
)
from cutset.tools.bench.training import data_speed, defaults, methods
from cutset.tools.bench.training.data_speed import DataSpeed
from cutset.tools.bench.training.defaults import DefaultsResult
from cutset.tools.bench.training.memory_peaks import MemoryPeaks
from cutset.tools.bench.training.methods import MethodResult, TrainingResult
from cutset.tools.bench.training.methods_table import judge_goals
from cutset.tools.bench.training.start_times import PLAIN_TORCH, StartTimes
from cutset.tools.bench.training.stragglers import StragglerResult


def test_what_an_operator_takes_beyond_torch_has_a_goal_where_nothing_is_sent() -> None:
    plain = StepRow("plain", 10, None, [1e-3, 1e-3])
    rows = [plain, StepRow("ours", 10, plain, [1.1e-3, 1.2e-3]), StepRow("cut", 10, plain, [2e-3, 2e-3], 45)]
    found = list(compare_steps(rows))
    assert [row.name for row in found] == ["step, ours", "beyond plain torch, an operator", "step, cut"]
    assert found[1].values == pytest.approx((1e-5, 2e-5))
    assert (found[1].met, found[1].limit.most if found[1].limit else None) == (True, GOAL_S)
    assert found[2].ratio == pytest.approx(2.0)


def test_only_what_trains_has_the_goal_of_a_start() -> None:
    rows = [
        StartTimes(PLAIN_TORCH, (), (), (1.0,), (1.0,)),
        StartTimes("plan x", (), (), (2.0,), (2.0,)),
        StartTimes("train x", (1.0,), (2.0,), (3.5,), (4.0,)),
    ]
    found = list(compare_starts(rows))
    assert [(row.name, row.ratio, row.met) for row in found] == [
        ("end of plan x", 2.0, None),
        ("first step of train x", 3.5, False),
    ]


def test_transforms_stand_beside_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutset.tools.bench.training.data_speed.read_cores", lambda: 2)
    rows = [
        DataSpeed("2 replicas", 2, data_speed.NONE, 0.01, [100.0], [1.0]),
        DataSpeed("2 replicas", 2, data_speed.WAITS, 0.01, [95.0], [0.95]),
        DataSpeed("2 replicas", 2, data_speed.COMPUTES, 0.01, [50.0], [0.5]),
    ]
    assert [(row.ratio, row.met) for row in compare_data(rows)] == [(0.95, True), (0.5, None)]


def test_every_process_stands_beside_the_bound() -> None:
    peaks = MemoryPeaks("x", 1, 4, {"shard-0": 100, "launcher": 200}, 1.0, limit=150)
    assert [(row.name, row.met) for row in compare_memory(peaks)] == [("launcher", False), ("shard-0", True)]


def test_iterations_stand_beside_the_ideal() -> None:
    (row,) = compare_stragglers([StragglerResult("small portions", 4, 1.5, 1.0, 3.0)])
    assert (row.ratio, row.peer_value) == (1.5, 1.0)


def test_accuracies_may_be_a_point_lower() -> None:
    alone = DefaultsResult("digits", defaults.ONE, 1, (0.98, 0.97, 0.99))
    rows = [alone, *(DefaultsResult("digits", "sync", 2, (accuracy,)) for accuracy in (0.971, 0.969))]
    assert [row.met for row in compare_defaults(rows)] == [True, False]


def test_methods_have_the_goals_of_their_command() -> None:
    def make(name: str, rate: float, *, ours: bool = False) -> MethodResult:
        return MethodResult(name, "", "", 3, TrainingResult(((1, 0.97),), rate), (rate,), ours)

    torch = [make(name, 100.0) for name in (methods.ONE, methods.DDP_64)]
    rows = [*torch, make("downpour", 160.0, ours=True), make("hogwild", 150.0, ours=True), make("sync", 1.0, ours=True)]
    found = {(row.name, row.peer): row for row in compare_methods(rows)}
    assert found["downpour", methods.DDP_64].met is True
    assert found["hogwild", methods.ONE].met is False
    assert found["sync", methods.ONE].met is None
    assert found["accuracy of sync", methods.ONE].met is True
    speed = [goal for goal in judge_goals(rows) if "samples/s" in goal.goal]
    assert {goal.wanted for goal in speed} == {
        row.limit.least for row in found.values() if row.limit and row.limit.of_ratio
    }
