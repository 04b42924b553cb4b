"""Boxes of sums and means."""

import pytest
import torch
from row_calls import Given, assert_boxes_are_the_whole, b, build, given, n, rows_called, rows_of, uncuttable, x

from cutset.partition.operators import rows_reduction


def sums() -> dict[str, Given]:
    return {
        "mean": given("mean", x(4, 6)),
        "mean dims": given("aten.mean.dim", x(4, 5, 6), [0, -1]),
        "mean keep": given("aten.mean.dim", x(4, 5, 6), [1], True),
        "mean rounded": given("aten.mean.dim", x(4, 5).float(), [0], dtype=torch.float64),
        "mean of numbers": given("aten.mean.dim", n(9, 4, 5), [0], dtype=torch.float64),
        "sum": given("sum", x(4, 6)),
        "sum dims": given("aten.sum.dim_IntList", x(4, 5, 6), [1, 2]),
        "sum keep": given("aten.sum.dim_IntList", x(4, 5, 6), [-1], True),
        "sum counts": given("sum", b(4, 6)),
        "sum of none": given("aten.sum.dim_IntList", x(4, 6), []),
        "sum as": given("aten.sum.dim_IntList", n(9, 4, 6), [0], dtype=torch.float32),
        "sum of one column": given("aten.sum.dim_IntList", x(4, 1), [1], True),
        "nansum": given("nansum", x(4, 6).masked_fill(b(4, 6), float("nan")), [1]),
        "count_nonzero": given("aten.count_nonzero.dim_IntList", n(3, 4, 6), [0]),
        "count_nonzero all": given("count_nonzero", n(3, 4, 6)),
    }


CALLS = build(sums)


@pytest.mark.parametrize("finer", [False, True], ids=["", "finer"])
@pytest.mark.parametrize("name", CALLS)
def test_boxes_together_are_the_whole(name: str, finer: bool) -> None:
    assert_boxes_are_the_whole(CALLS[name], finer=finer)


def test_every_row_has_a_call() -> None:
    assert rows_of(rows_reduction) == rows_called(CALLS)


def test_every_call_can_be_cut() -> None:
    assert uncuttable(CALLS) == set()
