"""Axes: union-find with splitting."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.partition.ir.axes import Axes


def test_a_size_of_one_is_no_axis() -> None:
    assert Axes().new("x.0", 1) == ()


def test_an_axis_splits_where_it_meets_two() -> None:
    axes = Axes()
    wide, heads, each = axes.new("w.0", 64), axes.new("h.0", 4), axes.new("h.1", 16)
    assert axes.equate(wide, [*heads, *each])
    assert axes.sizes(wide) == (4, 16)
    assert axes.resolve(wide) == axes.resolve([*heads, *each])


def test_a_later_split_reaches_all_that_mean_the_same() -> None:
    axes = Axes()
    a, b = axes.new("a.0", 12), axes.new("b.0", 12)
    assert axes.equate(a, b)
    assert axes.equate(b, [*axes.new("c.0", 3), *axes.new("c.1", 4)])
    assert axes.sizes(a) == axes.sizes(b) == (3, 4)
    assert axes.resolve(a) == axes.resolve(b)


@pytest.mark.parametrize(("left", "right"), [((4, 6), (6, 4)), ((5,), (2, 3)), ((8,), (8, 2))])
def test_sizes_that_do_not_divide_change_nothing(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    axes = Axes()
    a = [axis for i, n in enumerate(left) for axis in axes.new(f"a.{i}", n)]
    b = [axis for i, n in enumerate(right) for axis in axes.new(f"b.{i}", n)]
    assert not axes.equate(a, b)
    assert (axes.sizes(a), axes.sizes(b)) == (left, right)


def test_a_view_onto_itself_ends() -> None:
    axes = Axes()
    two, eight = axes.new("x.0", 2), axes.new("x.1", 8)
    assert axes.equate([*two, *eight], [*eight, *axes.new("y.1", 2)])
    assert math.prod(axes.sizes(eight)) == 8


factors = st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=5)


@given(factors, st.lists(st.booleans(), min_size=5, max_size=5), st.lists(st.booleans(), min_size=5, max_size=5))
def test_two_groupings_of_the_same_factors_become_one_sequence(
    sizes: list[int], join_a: list[bool], join_b: list[bool]
) -> None:
    axes = Axes()
    a, b = (grouped(axes, sizes, join, name) for join, name in ((join_a, "a"), (join_b, "b")))
    assert axes.equate(a, b)
    assert axes.resolve(a) == axes.resolve(b)
    assert math.prod(axes.sizes(a)) == math.prod(sizes)
    assert axes.equate(b, a)


def grouped(axes: Axes, sizes: list[int], join: list[bool], name: str) -> list[int]:
    """The factors as axes, neighbours joined to one axis where `join` says so."""
    groups: list[int] = []
    for size, joined in zip(sizes, join, strict=False):
        if groups and joined:
            groups[-1] *= size
        else:
            groups.append(size)
    return [axis for i, size in enumerate(groups) for axis in axes.new(f"{name}.{i}", size)]
