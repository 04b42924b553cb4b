"""When a checkpoint by time is asked for, and how many steps ahead."""

import math

import pytest

from cutset.tools.job.checkpoint_timing import MARGIN_S, CheckpointTiming
from cutset.tools.job.process_specs import TrainingSpec
from cutset.tools.task.load_task import TaskSpec

EVERY_S, PACE = 10.0, 100  # steps a second
AHEAD = math.ceil(MARGIN_S * PACE) + 1  # steps that may be made until all have heard, with the one that is being made


class Run:
    """Two replicas that make PACE steps a second."""

    def __init__(self, *, steps: int = 10_000, period: int = 1, every_s: float = EVERY_S) -> None:
        training = TrainingSpec(
            TaskSpec("none"),
            batch=8,
            micro_batch=8,
            seed=0,
            replicas=2,
            steps=steps,
            evaluate_every=0,
            folder="nowhere",
            checkpoint_every=period,
            checkpoint_s=every_s,
        )
        self.now_s = 0.0
        self.timing = CheckpointTiming(training, clock=lambda: 1000.0 + self.now_s)

    def at(self, now_s: float, *, step: int | None = None, clock_s: float | None = None) -> int | None:
        """What is asked for after so many seconds; step: that replica 0 tells of then, clock_s: what its clock says."""
        self.now_s = now_s
        steps = round(PACE * now_s) if step is None else step
        return self.timing.note_progress(2 * steps, now_s if clock_s is None else clock_s)


@pytest.fixture
def run() -> Run:
    """It has made progress for a while, and the first checkpoint is due from second 10 on."""
    run = Run()
    assert [run.at(second) for second in (0.0, 1.0, 9.9)] == [None] * 3
    return run


def test_it_lies_further_ahead_than_anybody_can_be_when_he_hears_of_it(run: Run) -> None:
    assert run.at(12.0) == 1200 + AHEAD + 1


def test_the_next_is_due_so_long_after_this_one_was(run: Run) -> None:
    number = run.at(12.0)
    assert number is not None
    run.timing.mark_ended(number)
    assert [run.at(second) for second in (13.0, 21.9)] == [None, None]
    assert run.at(22.0) == 2200 + AHEAD + 1


def test_none_is_asked_for_while_another_may_come(run: Run) -> None:
    number = run.at(10.0)
    assert number is not None
    assert [run.at(second) for second in (20.0, 35.0)] == [None, None]
    run.timing.mark_ended(number)
    assert run.at(35.2) == 3520 + AHEAD + 1


def test_one_that_is_late_is_followed_at_once_by_one_further_ahead(run: Run) -> None:
    number = run.at(10.0)
    assert number is not None
    run.timing.mark_late(number - 1)
    assert run.at(10.2) is None, "another one was late, which is known"
    run.timing.mark_late(number)
    run.timing.mark_late(number)  # all who are late say so
    assert run.at(10.4) == 1040 + math.ceil(2 * MARGIN_S * PACE) + 2


def test_who_is_gone_is_not_waited_for(run: Run) -> None:
    number = run.at(10.0)
    assert number is not None
    run.timing.mark_interrupted()
    assert run.at(10.2, step=900, clock_s=0.1) == number + 1, "replica 0 makes steps again: no number comes twice"
    assert run.timing.mark_interrupted() is None
    assert run.at(10.4, step=1100, clock_s=0.1) == 1100 + AHEAD + 1, "its clock says nothing of the pace yet"


def test_where_a_disk_cannot_be_written_to_the_next_waits_for_its_time(run: Run) -> None:
    run.at(10.0)
    run.timing.mark_unsaved()
    run.timing.mark_interrupted()
    assert run.at(19.9) is None
    assert run.at(20.0) == 2000 + AHEAD + 1


@pytest.mark.parametrize(("steps", "number"), [(1000 + AHEAD + 1, None), (1000 + AHEAD + 2, 1000 + AHEAD + 1)])
def test_none_is_asked_for_that_would_come_at_the_end_or_later(steps: int, number: int | None) -> None:
    run = Run(steps=steps)
    assert run.at(0.0) is None
    assert run.at(10.0) == number


def test_it_comes_after_a_multiple_of_the_period() -> None:
    run = Run(period=40)
    run.at(0.0)
    assert run.at(10.0) == (1000 + AHEAD) // 40 + 1


def test_who_goes_by_steps_is_asked_for_nothing() -> None:
    run = Run(every_s=0.0)
    assert [run.at(second) for second in (0.0, 1e3, 1e6)] == [None] * 3
