"""Splits by speed against all splits there are; and on meshes, whose inner loops say how fast a row is."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.partition.layouts.device_mesh import DeviceMesh
from cutset.partition.layouts.proportional_split import split_by_speed

SPEEDS = st.one_of(st.integers(1, 9).map(float), st.floats(1e-3, 1e12))


def lengths_of(edges: Sequence[int]) -> list[int]:
    return [stop - start for start, stop in itertools.pairwise(edges)]


def all_splits(size: int, parts: int) -> list[list[int]]:
    """Every way to divide `size` points into `parts` parts, none of them empty."""
    return [lengths_of([0, *edges, size]) for edges in itertools.combinations(range(1, size), parts - 1)]


def slowest(lengths: Sequence[int], speeds: Sequence[float]) -> float:
    return max(length / speed for length, speed in zip(lengths, speeds, strict=True))


@pytest.mark.parametrize(
    ("size", "speeds", "expected"),
    [
        (32, (4, 4, 1, 1), [13, 13, 3, 3]),
        (32, (1, 1, 4, 4), [3, 3, 13, 13]),
        (10, (1, 1, 1), [3, 3, 4]),
        (7, (100, 1, 1), [5, 1, 1]),
        (20, (1, 1, *[1e-3] * 8), [6, 6, *[1] * 8]),  # the slow ones have a point each, whatever it takes them
        (3, (1, 100, 1), [1, 1, 1]),
    ],
)
def test_shares_are_those_of_the_least_maximum(size: int, speeds: tuple[float, ...], expected: list[int]) -> None:
    assert lengths_of(split_by_speed(size, speeds)) == expected


@given(st.lists(SPEEDS, min_size=1, max_size=5), st.integers(0, 9))
def test_no_split_at_all_has_a_faster_slowest_part(speeds: list[float], more: int) -> None:
    size = len(speeds) + more
    lengths = lengths_of(split_by_speed(size, speeds))
    splits = all_splits(size, len(speeds))
    assert lengths in splits, "every part has a point, and together they are all points"
    best = min(slowest(split, speeds) for split in splits)
    assert slowest(lengths, speeds) == pytest.approx(best, rel=1e-12)


@given(st.lists(SPEEDS, min_size=1, max_size=40), st.integers(0, 1_000_000))
def test_in_less_time_the_machines_would_not_do_all_points(speeds: list[float], more: int) -> None:
    """At any size: what all machines do in a little less than the slowest part's time is too little."""
    size = len(speeds) + more
    lengths = lengths_of(split_by_speed(size, speeds))
    assert sum(lengths) == size
    assert min(lengths) >= 1
    time = max((n / speed for n, speed in zip(lengths, speeds, strict=True) if n > 1), default=0.0) * (1 - 1e-12)
    assert sum(max(1, math.floor(time * speed)) for speed in speeds) < size or size == len(speeds)


@given(st.integers(1, 12), st.integers(1, 10), st.integers(1, 8))
def test_of_equal_speeds_an_axis_of_multiples_is_cut_in_the_same_places(parts: int, times: int, more: int) -> None:
    """So that what is pooled lies where it is read."""
    size = parts + more
    fine, coarse = split_by_speed(parts * times, [1.0] * parts), split_by_speed(parts, [1.0] * parts)
    assert fine == [edge * times for edge in coarse]
    assert split_by_speed(size, [3.0] * parts) == [size * i // parts for i in range(parts + 1)]


@given(st.lists(SPEEDS, min_size=4, max_size=4), st.integers(2, 7), st.integers(2, 7))
def test_tiles_are_the_best_that_have_whole_rows(speeds: list[float], height: int, width: int) -> None:
    """A row of machines has whole rows of points, each machine of it some of the columns."""
    mesh = DeviceMesh((2, 2), (0, 1, 2, 3), tuple(speeds), 4)
    rows, columns = np.diff(mesh.boxes([height, width], ((0, 0), (1, 1))))[..., 0].T
    tiles = [
        slowest([upper * left, upper * right, lower * first, lower * second], speeds)
        for upper, lower in all_splits(height, 2)
        for left, right in all_splits(width, 2)
        for first, second in all_splits(width, 2)
    ]
    assert slowest((rows * columns).tolist(), speeds) == pytest.approx(min(tiles), rel=1e-12)


@given(st.lists(SPEEDS, min_size=6, max_size=6), st.integers(6, 11), st.booleans())
def test_a_loop_that_both_dimensions_cut_is_split_among_all_machines(
    speeds: list[float], size: int, swapped: bool
) -> None:
    mesh = DeviceMesh((2, 3), tuple(range(6)), tuple(speeds), 6)
    lengths = np.diff(mesh.boxes([size], ((1, 0), (0, 0)) if swapped else ((0, 0), (1, 0))))[:, 0, 0].tolist()
    best = min(slowest(split, speeds) for split in all_splits(size, 6))
    assert slowest(lengths, speeds) == pytest.approx(best, rel=1e-12)
