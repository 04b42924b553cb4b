"""Contention, of times worked out by hand."""

import pytest

from cutset.tools.probe.contention import compute_contention


@pytest.mark.parametrize(
    ("crowded", "expected"),
    [
        ([[3.0], [3.0]], 1.5),
        ([[2.2, 2.2, 9.0], [2.4, 2.4, 2.4]], 1.2),  # other work that disturbs one step does not matter
        ([[2.0, 3.0, 2.0, 3.0, 2.0], [3.0, 2.0, 3.0, 2.0, 3.0]], 1.5),  # now one of them is the last, now the other
        ([[1.8], [1.9]], 1.0),  # beside others nothing becomes faster
        ([[9.0], [9.0]], 2.0),  # one after the other would not take as long
        ([[9.0], [9.0], [9.0], [9.0]], 4.0),
    ],
)
def test_contention_is_what_the_last_process_takes_longer(crowded: list[list[float]], expected: float) -> None:
    assert compute_contention([2.0] * len(crowded[0]), crowded, len(crowded)) == expected


@pytest.mark.parametrize(
    ("crowded", "expected"),
    [
        ([[3.0], [3.0], [3.0]], 1.0),  # three processes on two cores, without loss
        ([[2.0], [4.0], [4.0]], 1.33),  # one has a core to itself, the others share one
        ([[3.0, 3.3, 9.0], [3.0, 3.0, 3.0], [3.0, 3.0, 3.0]], 1.1),  # the middle step
        ([[8.0], [8.0], [8.0]], 2.0),  # one core would not take as long
        ([[1.0], [1.0], [1.0]], 1.0),
    ],
)
def test_who_takes_turns_is_done_with_the_last(crowded: list[list[float]], expected: float) -> None:
    assert compute_contention([2.0] * len(crowded[0]), crowded, 2) == expected


def test_rounds_of_a_slower_machine_count_as_others() -> None:
    assert compute_contention([2.0, 4.0, 4.0], [[3.0, 6.0, 6.0], [3.0, 6.0, 6.0]], 2) == 1.5
