"""rows_contraction: boxes of every row against the whole operator."""

import pytest
import torch
from row_calls import (
    Given,
    assert_boxes_are_the_whole,
    assert_stays_whole,
    build,
    given,
    n,
    rows_called,
    rows_of,
    uncuttable,
    x,
)

from cutset.partition import rows_contraction


def contractions() -> dict[str, Given]:
    return {
        "linear": given("linear", x(5, 4), x(6, 4)),
        "linear bias": given("linear", x(5, 4), x(6, 4), x(6)),
        "linear vector": given("linear", x(4), x(6, 4), x(6)),
        "linear 3-d": given("linear", x(2, 3, 4), x(6, 4), x(6)),
        "matmul": given("matmul", x(4, 5), x(5, 3)),
        "matmul broadcast": given("matmul", x(2, 1, 4, 5), x(3, 5, 6)),
        "mm": given("mm", x(4, 5), x(5, 3)),
        "bmm": given("bmm", x(2, 4, 5), x(2, 5, 3)),
        "embedding": given("embedding", x(7, 4), n(7, 3, 5)),
        "embedding padding": given("embedding", x(7, 4), n(7, 6), 1),
    }


CALLS = build(contractions)


@pytest.mark.parametrize("finer", [False, True], ids=["", "finer"])
@pytest.mark.parametrize("name", CALLS)
def test_boxes_together_are_the_whole(name: str, finer: bool) -> None:
    assert_boxes_are_the_whole(CALLS[name], finer=finer)


def test_every_row_has_a_call() -> None:
    assert rows_of(rows_contraction) == rows_called(CALLS)


def test_every_call_can_be_cut() -> None:
    assert uncuttable(CALLS) == set()


@pytest.mark.parametrize(
    "case",
    [
        given("matmul", torch.zeros(4, 5), torch.zeros(5)),
        given("embedding", torch.zeros(7, 4), torch.zeros(3, dtype=torch.int64), -1, True),
    ],
    ids=lambda case: case.target,
)
def test_a_call_that_no_row_describes_stays_whole(case: Given) -> None:
    assert_stays_whole(case)
