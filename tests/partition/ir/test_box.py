"""Boxes against sets of points."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.partition.ir import box as box_module
from cutset.partition.ir.box import (
    Box,
    are_boxes,
    as_array,
    as_box,
    cells,
    cover,
    find_common,
    fuse,
    hull,
    intersect,
    intersections,
    overlaps,
    relative,
    sizes,
    slices,
    split_evenly,
    volume,
    whole,
)

intervals = st.integers(0, 5).flatmap(lambda a: st.tuples(st.just(a), st.integers(a + 1, 6)))
boxes_2d = st.tuples(intervals, intervals)


def points(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(a, b) for a, b in box)))


def union(boxes: list[Box]) -> set[tuple[int, ...]]:
    return set().union(*map(points, boxes)) if boxes else set()


@given(boxes_2d, boxes_2d)
def test_intersect_is_the_common_points(a: Box, b: Box) -> None:
    common = intersect(a, b)
    assert (points(common) if common is not None else set()) == points(a) & points(b)


@given(st.lists(boxes_2d, max_size=6))
def test_cover_has_the_same_points_in_disjoint_boxes(boxes: list[Box]) -> None:
    disjoint = cover(boxes)
    assert union(disjoint) == union(boxes)
    assert sum(map(volume, disjoint)) == len(union(boxes))


@given(st.lists(intervals, min_size=1, max_size=3))
def test_fusing_all_cells_of_a_grid_gives_the_whole(axes: list[tuple[int, int]]) -> None:
    grid = list(itertools.product(*([(i, i + 1) for i in range(a, b)] for a, b in axes)))
    assert fuse(grid) == [tuple(axes)]


@given(st.lists(boxes_2d, min_size=1, max_size=5))
def test_fuse_keeps_the_points_and_leaves_nothing_to_fuse(boxes: list[Box]) -> None:
    disjoint = cover(boxes)
    assert fuse(disjoint) == fuse(fuse(disjoint))
    assert union(fuse(disjoint)) == union(boxes)
    assert len(fuse(disjoint)) <= len(disjoint)


@given(st.lists(boxes_2d, max_size=4), st.lists(boxes_2d, max_size=4))
def test_overlaps_counts_common_points(a: list[Box], b: list[Box]) -> None:
    counted = overlaps(a, b)
    assert counted.shape == (len(a), len(b))
    for i, j in itertools.product(range(len(a)), range(len(b))):
        assert counted[i, j] == len(points(a[i]) & points(b[j]))


@given(st.lists(boxes_2d, min_size=1, max_size=4), st.lists(boxes_2d, min_size=1, max_size=4))
def test_intersections_are_the_common_points(a: list[Box], b: list[Box]) -> None:
    common = intersections(as_array(a), as_array(b))
    found = are_boxes(common)
    for i, j in itertools.product(range(len(a)), range(len(b))):
        both = points(a[i]) & points(b[j])
        assert found[i, j] == bool(both)
        if both:
            assert points(as_box(common[i, j].tolist())) == both


def test_overlaps_of_scalars_is_one_point() -> None:
    assert overlaps([()], [(), ()]).tolist() == [[1, 1]]


@given(st.lists(boxes_2d, min_size=1, max_size=4))
def test_every_box_is_a_block_of_cells(boxes: list[Box]) -> None:
    breaks, index = cells(boxes)
    for box, where in zip(boxes, index, strict=True):
        assert tuple((axis[s.start], axis[s.stop]) for axis, s in zip(breaks, where, strict=True)) == box


@given(st.integers(1, 40), st.integers(1, 12))
def test_split_evenly_covers_in_order_with_lengths_that_differ_by_one(size: int, parts: int) -> None:
    pieces = split_evenly(size, parts)
    assert [a for a, _ in pieces] == [0, *(b for _, b in pieces[:-1])]
    assert pieces[-1][1] == size
    assert max(b - a for a, b in pieces) - min(b - a for a, b in pieces) <= 1
    assert len(pieces) == min(parts, size)


def test_the_box_of_a_scalar_has_one_point() -> None:
    assert (whole(()), volume(()), sizes(()), slices(()), hull([(), ()])) == ((), 1, (), (), ())


def test_relative_moves_the_corner_of_the_outer_box_to_zero() -> None:
    assert relative(((3, 5), (7, 9)), ((2, 6), (7, 10))) == ((1, 3), (0, 2))


def test_what_boxes_have_in_common_is_the_same_whether_it_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    a = (((0, 4), (0, 4)), ((4, 8), (0, 4)), ((0, 8), (6, 9)))
    b = (((2, 6), (0, 2)), ((2, 6), (2, 3)), ((9, 10), (0, 9)))
    expected = {0: [((2, 4), (0, 3))], 1: [((4, 6), (0, 3))]}
    for _ in range(2):
        assert dict(find_common(a, b)) == expected
    monkeypatch.setattr(box_module, "MAX_REMEMBERED", 0)
    assert dict(find_common(a, b)) == expected


def test_scalars_have_their_only_point_in_common() -> None:
    assert dict(find_common(((),), ((),))) == {0: [()]}
