"""Cuts that are refused, and the owners of sums."""

import pytest
from example_graphs import chain

from cutset.errors import BadInput
from cutset.partition.dataflow.cut import (
    Cut,
    assign_fold_owners,
    check_cut,
    find_partial_ops,
    fuse_boxes,
    one_machine_cut,
)
from cutset.partition.ir.box import Box

GRAPH = chain(8, 6, 5)
WHOLE = one_machine_cut(GRAPH)


def test_the_uncut_model_is_a_legal_cut() -> None:
    check_cut(GRAPH, WHOLE)


def replaced(boxes: list[tuple[Box, int]], machines: int = 2) -> Cut:
    return Cut(machines, {**WHOLE.boxes, "linear": boxes})


@pytest.mark.parametrize(
    ("boxes", "said"),
    [
        ([(((0, 4), (0, 3), (0, 8)), 0)], "do not cover"),
        ([(((0, 4), (0, 4), (0, 8)), 0), (((0, 4), (3, 6), (0, 8)), 1)], "do not cover"),
        ([(((0, 4), (0, 7), (0, 8)), 0)], "lies outside"),
        ([(((0, 4), (0, 6)), 0)], "lies outside"),
        ([(((0, 4), (0, 6), (0, 8)), 2)], "machine 2; there are 2"),
    ],
)
def test_boxes_that_do_not_cover_exactly_once_are_refused_by_name(boxes: list[tuple[Box, int]], said: str) -> None:
    with pytest.raises(BadInput, match=said) as error:
        check_cut(GRAPH, replaced(boxes))
    assert "linear" in error.value.facts


def test_an_operator_without_boxes_is_named() -> None:
    boxes = {name: pieces for name, pieces in WHOLE.boxes.items() if name != "linear_1"}
    with pytest.raises(BadInput, match="says nothing about operator linear_1"):
        check_cut(GRAPH, Cut(1, boxes))


def test_a_parameter_that_the_model_does_not_have_is_named() -> None:
    with pytest.raises(BadInput, match=r"owns nine\.weight"):
        check_cut(GRAPH, Cut(1, WHOLE.boxes, owners={"nine.weight": [(((0, 1),), 0)]}))


def test_blocks_of_a_machine_are_fused_to_rectangles() -> None:
    blocks = [(((0, 4), (i, i + 1), (0, 8)), i // 3) for i in range(6)]
    assert fuse_boxes(2, {"linear": blocks})["linear"] == [(((0, 4), (0, 3), (0, 8)), 0), (((0, 4), (3, 6), (0, 8)), 1)]


def test_a_sum_belongs_to_those_who_read_it_first() -> None:
    halves = [(((0, 4), (0, 6), (0, 4)), 0), (((0, 4), (0, 6), (4, 8)), 1)]
    readers = [(((0, 2), (0, 5), (0, 6)), 0), (((2, 4), (0, 5), (0, 6)), 1)]
    cut = Cut(2, {**WHOLE.boxes, "linear": halves, "linear_1": readers})
    assert [op.name for op in find_partial_ops(GRAPH, cut.boxes)] == ["linear"]
    assert assign_fold_owners(GRAPH, cut).folds["linear"] == [(((0, 2), (0, 6)), 0), (((2, 4), (0, 6)), 1)]


def test_a_sum_that_all_read_belongs_to_the_machine_with_most_of_the_work() -> None:
    parts = [(((0, 4), (0, 6), (0, 2)), 0), (((0, 4), (0, 6), (2, 8)), 1)]
    readers = [(((0, 4), (0, 2), (0, 6)), 0), (((0, 4), (2, 5), (0, 6)), 1)]
    cut = Cut(2, {**WHOLE.boxes, "linear": parts, "linear_1": readers})
    assert assign_fold_owners(GRAPH, cut).folds["linear"] == [(((0, 4), (0, 6)), 1)]
