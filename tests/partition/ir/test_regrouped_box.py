"""Boxes in other axes of the same dimensions have the same elements."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.partition.ir.box import Box, slices
from cutset.partition.ir.regrouped_box import regroup_box

Groups = tuple[tuple[int, ...], ...]


@st.composite
def divisions(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """Sizes of axes that make up a dimension."""
    out = []
    while size > 1:
        out.append(draw(st.sampled_from([d for d in range(2, size + 1) if size % d == 0])))
        size //= out[-1]
    return tuple(out) or draw(st.sampled_from([(), (1,)]))


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Box, Groups, Groups]:
    dimensions = draw(st.lists(st.sampled_from([1, 2, 6, 8, 12, 16]), max_size=3))
    one, other = (tuple(draw(divisions(size)) for size in dimensions) for _ in range(2))
    box = []
    for size in (size for sizes in one for size in sizes):
        start = draw(st.integers(0, size - 1))
        box.append((start, draw(st.integers(start + 1, size))))
    return tuple(box), one, other


def elements(box: Box, groups: Groups) -> list[int]:
    """Numbers of the elements of a box, in its order."""
    extents = [size for sizes in groups for size in sizes]
    found: list[int] = np.arange(math.prod(extents)).reshape(extents)[slices(box)].reshape(-1).tolist()
    return found


@given(boxes())
def test_the_parts_have_the_elements_of_the_box_in_both_axes(drawn: tuple[Box, Groups, Groups]) -> None:
    box, one, other = drawn
    parts = regroup_box(box, one, other)
    assert all(elements(here, one) == elements(there, other) for here, there in parts)
    assert sorted(number for here, _ in parts for number in elements(here, one)) == sorted(elements(box, one))
    for _, there in parts:
        assert len(regroup_box(there, other, one)) == 1, "what is one box in both axes stays one"


@pytest.mark.parametrize(
    ("box", "groups", "other", "expected"),
    [
        (((0, 3), (2, 5)), ((3,), (8,)), ((3,), (8,)), [((0, 3), (2, 5))]),
        (((0, 128), (0, 4), (0, 4)), ((128, 4, 4),), ((2048,),), [((0, 2048),)]),
        (((32, 64), (0, 4), (0, 4)), ((128, 4, 4),), ((2048,),), [((512, 1024),)]),
        (((512, 1024),), ((2048,),), ((128, 4, 4),), [((32, 64), (0, 4), (0, 4))]),
        (((0, 2), (1, 3)), ((2, 4),), ((8,),), [((1, 3),), ((5, 7),)]),
        (((3, 10),), ((12,),), ((3, 4),), [((0, 1), (3, 4)), ((1, 2), (0, 4)), ((2, 3), (0, 2))]),
        ((), ((), ()), ((1,), ()), [((0, 1),)]),
    ],
)
def test_boxes_stay_as_large_as_they_can(box: Box, groups: Groups, other: Groups, expected: Sequence[Box]) -> None:
    assert [there for _, there in regroup_box(box, groups, other)] == expected
