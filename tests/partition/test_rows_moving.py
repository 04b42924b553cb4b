"""rows_moving: boxes of every row against the whole operator."""

import pytest
import torch
from row_calls import (
    Given,
    assembled,
    assert_boxes_are_the_whole,
    assert_stays_whole,
    build,
    drafted,
    given,
    rows_called,
    rows_of,
    uncuttable,
    x,
)

from cutset.partition import rows_moving
from cutset.partition.resolve import resolve


def moving() -> dict[str, Given]:
    return {
        "reshape": given("reshape", x(4, 6), [2, 2, 3, 2]),
        "reshape merge": given("reshape", x(2, 3, 4), [6, 4]),
        "reshape both": given("reshape", x(4, 6), [8, -1]),
        "flatten": given("aten.flatten.using_ints", x(2, 3, 4), 1),
        "unflatten": given("aten.unflatten.int", x(2, 12), 1, [3, 4]),
        "unsqueeze": given("unsqueeze", x(4, 6), 1),
        "squeeze": given("aten.squeeze.dim", x(4, 1, 6), 1),
        "expand": given("expand", x(4, 1, 3), [2, 4, 5, -1]),
        "transpose": given("aten.transpose.int", x(2, 3, 4), 0, -1),
        "t": given("t", x(3, 4)),
        "t of a vector": given("t", x(4)),
        "permute": given("permute", x(2, 3, 4), [2, 0, 1]),
        "select": given("aten.select.int", x(4, 5, 3), 1, 2),
        "select last": given("aten.select.int", x(4, 5), -1, -1),
        "slice": given("aten.slice.Tensor", x(4, 9), 1, 2, 7, 1),
        "slice step": given("aten.slice.Tensor", x(4, 9), 1, 1, 9, 3),
        "slice negative": given("aten.slice.Tensor", x(9, 4), 0, -5, -1),
        "slice one": given("aten.slice.Tensor", x(4, 9), 1, 3, 4),
        "slice all": given("aten.slice.Tensor", x(4, 9), 1, 0, 2**63 - 1),
        "cat": given("cat", [x(2, 3), x(4, 3), x(3, 3)]),
        "cat columns": given("cat", [x(4, 3), x(4, 5)], -1),
        "cat small": given("cat", [x(4, 1), x(4, 5)], 1),
    }


CALLS = build(moving)


@pytest.mark.parametrize("finer", [False, True], ids=["", "finer"])
@pytest.mark.parametrize("name", CALLS)
def test_boxes_together_are_the_whole(name: str, finer: bool) -> None:
    assert_boxes_are_the_whole(CALLS[name], finer=finer)


def test_every_row_has_a_call() -> None:
    assert rows_of(rows_moving) == rows_called(CALLS) | {"aten.copy_"}


def test_every_call_can_be_cut() -> None:
    assert uncuttable(CALLS) == set()


def test_boxes_of_a_store_overwrite_their_part() -> None:
    state, new = torch.zeros(4, 6), torch.arange(6.0)
    draft, values = drafted(given("copy_", state.clone(), new), False)
    graph = resolve(draft)
    values["self"] = state
    box = ((0, 4), (2, 5))
    assembled(graph.ops[-1], [box], graph, values)
    assert torch.equal(state[:, 2:5], new[2:5].expand(4, 3))
    assert state.sum() == 4 * new[2:5].sum()


@pytest.mark.parametrize(
    "case",
    [
        given("reshape", torch.zeros(4, 6), [3, 8]),
        given("cat", [torch.zeros(0), torch.zeros(3)]),
    ],
    ids=lambda case: case.target,
)
def test_a_call_that_no_row_describes_stays_whole(case: Given) -> None:
    assert_stays_whole(case)
