"""Contention, of times worked out by hand."""

import pytest

from cutset.tools.probe.contention import compute_contention


@pytest.mark.parametrize(
    ("crowded", "expected"),
    [
        ([3.0, 3.0], 1.5),
        ([2.2, 2.4, 9.0], 1.2),  # other work that disturbs one of them does not matter
        ([1.8, 1.9], 1.0),  # beside others nothing becomes faster
        ([9.0, 9.0], 2.0),  # one after the other would not take as long
        ([9.0, 9.0, 9.0, 9.0], 4.0),
    ],
)
def test_contention_is_what_the_middle_process_takes_longer(crowded: list[float], expected: float) -> None:
    assert compute_contention(2.0, crowded) == expected
