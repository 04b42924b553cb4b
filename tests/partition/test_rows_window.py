"""rows_window: boxes of every row against the whole operator."""

import pytest
import torch
from row_calls import (
    Given,
    assert_boxes_are_the_whole,
    assert_stays_whole,
    build,
    given,
    rows_called,
    rows_of,
    uncuttable,
    x,
)

import cutset.models.local  # noqa: F401 - registers its operator
from cutset.partition import rows_window


def windows() -> dict[str, Given]:
    return {
        "conv1d": given("conv1d", x(2, 3, 11), x(4, 3, 3), x(4), [2], [1]),
        "conv2d": given("conv2d", x(2, 3, 7, 8), x(4, 3, 3, 2), x(4)),
        "conv2d stride": given("conv2d", x(2, 2, 9, 8), x(4, 2, 3, 3), None, [2, 2], [1, 1]),
        "conv2d dilated": given("conv2d", x(2, 2, 9, 9), x(3, 2, 3, 3), x(3), [1], [2], [2]),
        "conv2d padded": given("conv2d", x(1, 2, 6, 6), x(3, 2, 5, 3), x(3), [1, 1], [2, 1]),
        "conv2d grouped": given("conv2d", x(2, 4, 6, 6), x(6, 2, 3, 3), x(6), [1, 1], [1, 1], [1, 1], 2),
        "conv2d same": given("aten.conv2d.padding", x(2, 2, 6, 7), x(3, 2, 3, 5), x(3), [1, 1], "same"),
        "conv2d valid": given("aten.conv2d.padding", x(2, 2, 6, 7), x(3, 2, 3, 5), x(3), [1, 1], "valid"),
        "conv2d leftover": given("conv2d", x(1, 1, 10, 12), x(2, 1, 3, 3), None, [3, 4]),
        "conv2d of one column": given("conv2d", x(2, 2, 6, 1), x(3, 2, 3, 1), x(3), [1, 1], [1, 0]),
        "conv3d": given("conv3d", x(1, 2, 5, 6, 4), x(3, 2, 3, 3, 1), x(3), [1, 2, 1], [1, 0, 0]),
        "max_pool2d": given("max_pool2d", x(2, 3, 8, 9), [2, 2]),
        "max_pool2d padded": given("max_pool2d", x(2, 3, 9, 9), [3, 3], [2, 2], [1, 1]),
        "max_pool2d dilated": given("max_pool2d", x(2, 3, 9, 9), [3], [1], [1], [2]),
        "max_pool2d ceil": given("max_pool2d", x(2, 3, 8, 8), [3, 3], [2, 2], [0, 0], [1, 1], True),
        "max_pool2d unbatched": given("max_pool2d", x(3, 8, 8), [2, 2]),
        "avg_pool2d": given("avg_pool2d", x(2, 3, 8, 9), [2, 3], [1, 2]),
        "avg_pool2d padded": given("avg_pool2d", x(2, 3, 8, 8), [3, 3], [2, 2], [1, 1]),
        "avg_pool2d exclusive": given("avg_pool2d", x(2, 3, 8, 8), [3, 3], [2, 2], [1, 1], False, False),
        "avg_pool2d ceil": given("avg_pool2d", x(2, 3, 8, 8), [3, 3], [2, 2], [1, 1], True),
        "local2d": given("cutset.local2d.default", x(2, 3, 7, 8), x(5, 7, 4, 3, 3, 2), x(4, 5, 7), 1),
        "local2d stride": given("cutset.local2d.default", x(2, 2, 7, 7), x(3, 3, 4, 2, 3, 3), None, 2),
    }


CALLS = build(windows)


@pytest.mark.parametrize("finer", [False, True], ids=["", "finer"])
@pytest.mark.parametrize("name", CALLS)
def test_boxes_together_are_the_whole(name: str, finer: bool) -> None:
    assert_boxes_are_the_whole(CALLS[name], finer=finer)


def test_every_row_has_a_call() -> None:
    assert rows_of(rows_window) == rows_called(CALLS)


def test_every_call_can_be_cut() -> None:
    assert uncuttable(CALLS) == set()


@pytest.mark.parametrize(
    "case",
    [
        given("aten.conv2d.padding", torch.zeros(1, 2, 6, 6), torch.zeros(3, 2, 2, 2), None, [1, 1], "same"),
        given("conv2d", torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 1, 1), None, [1, 1], [2, 2]),
    ],
    ids=lambda case: case.target,
)
def test_a_call_that_no_row_describes_stays_whole(case: Given) -> None:
    assert_stays_whole(case)
