"""More processes read where training waits for batches, unless those that read already queue for cores."""

import pytest

from cutset.tools.samples.reader_demand import SETTLING, WINDOW, ReaderDemand, ReadTimes


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def count_until_more(step_s: float, waited_s: float, queued: float, *, batches: int) -> int | None:
    """Return after how many batches more processes are asked for."""
    clock = Clock()
    demand = ReaderDemand(clock)
    for number in range(batches):
        clock.now += step_s + waited_s
        if demand.count(ReadTimes(waited_s, queued)):
            return number + 1
    return None


@pytest.mark.parametrize(
    ("waited_s", "queued", "expected"),
    [
        (0.5, 0.0, SETTLING + WINDOW),
        (0.5, 0.2, SETTLING + WINDOW),
        (0.5, 0.4, None),  # they queue for cores: more would queue longer
        (0.03, 0.0, None),  # 3 % of the time
        (0.0, 0.0, None),
    ],
)
def test_more_are_asked_for_where_training_waits_and_cores_are_free(
    waited_s: float, queued: float, expected: int | None
) -> None:
    assert count_until_more(1.0, waited_s, queued, batches=10 * WINDOW) == expected


def test_batches_read_by_fewer_do_not_count_for_the_next_time() -> None:
    clock = Clock()
    demand = ReaderDemand(clock)
    asked = []
    for number in range(1, 4 * (SETTLING + WINDOW)):
        clock.now += 1.0
        is_early = number < 2 * SETTLING + WINDOW  # all that were asked for before there were more
        asked += [number] if demand.count(ReadTimes(0.5 if is_early else 0.0, 0.0)) else []
    assert asked == [SETTLING + WINDOW]


def test_the_wait_for_the_first_batches_does_not_count() -> None:
    clock = Clock()
    demand = ReaderDemand(clock)
    for number in range(4 * WINDOW):
        waited_s = 60.0 if number < 2 else 0.0
        clock.now += 1.0 + waited_s
        assert not demand.count(ReadTimes(waited_s, 0.0))
