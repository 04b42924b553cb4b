"""More processes read where training waits for batches, and as long as batches come faster for it."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from cutset.tools.samples.reader_demand import REST, SETTLING, WINDOW, ReaderDemand

TRIAL = SETTLING + WINDOW


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def count_processes(
    step_s: float, wait: Callable[[int], float], *, batches: int, pause_s: float = 0.0, pauses: tuple[int, ...] = ()
) -> list[int]:
    """Return how many processes read each batch. wait: for a batch, by how many read. pauses: batches before which."""
    clock = Clock()
    demand, counts = ReaderDemand(2, 8, clock), list[int]()
    for number in range(batches):
        counts.append(demand.count)
        waited_s = wait(demand.count)
        clock.now += step_s + waited_s + (pause_s if number in pauses else 0.0)
        demand.note(waited_s)
    return counts


def test_processes_become_more_until_training_waits_no_more() -> None:
    """Samples that wait for a disk: twice as many processes read twice as fast."""
    counts = count_processes(1.0, lambda count: max(0.0, 6.0 / count - 1.0), batches=10 * TRIAL)
    assert counts == [2] * TRIAL + [4] * TRIAL + [8] * 8 * TRIAL


def test_few_read_where_training_hardly_waits() -> None:
    assert set(count_processes(1.0, lambda count: 0.03, batches=10 * TRIAL)) == {2}


def test_more_are_given_up_where_they_are_no_faster_and_tried_again_ever_more_seldom() -> None:
    """Samples that compute, where there are no more cores."""
    counts = count_processes(1.0, lambda count: 0.5, batches=2000)
    began = [number for number in range(1, len(counts)) if counts[number - 1 : number + 1] == [2, 4]]
    assert began[0] == TRIAL
    rests = [later - sooner - TRIAL for sooner, later in pairwise(began)]
    assert rests == [SETTLING + (times + 1) * WINDOW for times in (REST, 2 * REST, 4 * REST)]
    assert counts.count(4) == len(began) * TRIAL
    assert max(counts) == 4


def test_more_are_kept_as_far_as_they_help() -> None:
    counts = count_processes(1.0, lambda count: 1.0 if count == 2 else 0.5, batches=10 * TRIAL)
    assert counts[:TRIAL] == [2] * TRIAL
    assert counts[TRIAL : 2 * TRIAL] == [4] * TRIAL
    assert counts[2 * TRIAL : 3 * TRIAL] == [8] * TRIAL
    assert set(counts[3 * TRIAL : 8 * TRIAL]) == {4}


@pytest.mark.parametrize("pauses", [(TRIAL - 2,), (2 * TRIAL - 2,)])
def test_a_pause_tells_nothing_of_the_processes(pauses: tuple[int, ...]) -> None:
    """An evaluation while two or while four read."""
    helped = count_processes(1.0, lambda count: 4.0 / count - 1.0, batches=3 * TRIAL, pause_s=9.0, pauses=pauses)
    assert helped[-1] == 4
    useless = count_processes(1.0, lambda count: 0.5, batches=3 * TRIAL, pause_s=9.0, pauses=pauses)
    assert useless[-1] == 2


def test_the_wait_for_the_first_batches_does_not_count() -> None:
    clock = Clock()
    demand = ReaderDemand(2, 8, clock)
    for number in range(4 * WINDOW):
        waited_s = 60.0 if number < 2 else 0.0
        clock.now += 1.0 + waited_s
        demand.note(waited_s)
        assert demand.count == 2
