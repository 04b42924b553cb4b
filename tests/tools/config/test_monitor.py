"""Which evaluation is the best, and when training ends."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.errors import UsageError
from cutset.models.metrics import Perplexity
from cutset.tools.config.monitor import Monitor, choose_monitor

VALUES = st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, math.inf, math.nan, None]), min_size=1, max_size=8)


def curve(values: list[float | None]) -> list[dict[str, Any]]:
    return [{"test_loss": value, "test_accuracy": None, "metrics": {}} for value in values]


@given(VALUES, st.booleans(), st.integers(0, 3))
def test_an_evaluation_is_judged_as_a_count_by_hand_does(values: list[float | None], more: bool, patience: int) -> None:
    numbers = [value for value in values if value is not None and not math.isnan(value)]
    best = (max if more else min)(numbers) if numbers else None
    first = values.index(best) if best is not None else -1
    judged = Monitor("test_loss", more, patience).judge(curve(values))
    assert judged.is_best == (first == len(values) - 1)
    assert judged.must_stop == (patience > 0 and len(values) - 1 - first >= patience)


def test_the_best_of_the_run_before_counts() -> None:
    monitor = Monitor("test_loss", before=1.0, patience=2)
    assert not monitor.judge(curve([2.0])).is_best
    assert monitor.judge(curve([2.0, 1.5])).must_stop
    assert monitor.judge(curve([2.0, 0.5])) == (True, False)


def test_scores_are_those_of_the_task() -> None:
    class Scored(Perplexity):
        higher_is_better = False

    def choose(choice: str | None, patience: int | None = None) -> Monitor | None:
        metrics = {"perplexity": Scored(), "own": lambda outputs, target: 0.0}
        return choose_monitor(choice, patience, metrics, counts_correct=True, has_loss=True)

    assert choose(None) is None
    assert choose(None, 3) == Monitor("test_loss", False, 3)
    assert choose("test_accuracy") == Monitor("test_accuracy", True)
    assert choose("perplexity") == Monitor("perplexity", False)
    assert choose("max:own", 2) == Monitor("own", True, 2)
    with pytest.raises(UsageError, match="does not say by higher_is_better") as caught:
        choose("own")
    assert caught.value.fix == "--monitor max:own, or min:own"
    with pytest.raises(UsageError, match=r"no score 'acc'; it has test_loss, test_accuracy, perplexity, own"):
        choose("acc")


def test_a_task_without_a_loss_in_evaluation_needs_another_score() -> None:
    with pytest.raises(UsageError, match="--patience without --monitor") as caught:
        choose_monitor(None, 2, {}, counts_correct=True, has_loss=False)
    assert caught.value.fix == "--monitor test_accuracy"
