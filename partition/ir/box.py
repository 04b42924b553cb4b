"""Boxes: products of half-open intervals, one for each axis, of which cuts, halos and messages are made.

A box is a tuple of (start, stop). The box of a scalar is the empty tuple, with volume one.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Interval = tuple[int, int]
Box = tuple[Interval, ...]
Ints = npt.NDArray[np.int64]

MAX_REMEMBERED = 256  # pairs of boxes up to which what they have in common is remembered


def whole(sizes: Sequence[int]) -> Box:
    """Return the box that covers axes of these sizes."""
    return tuple((0, size) for size in sizes)


def volume(box: Box) -> int:
    """Return the number of points in a box."""
    points = 1
    for start, stop in box:
        points *= stop - start
    return points


def intersect(a: Box, b: Box) -> Box | None:
    """Return the box of the common points, or None where there are none."""
    common = []
    for (start, stop), (other_start, other_stop) in zip(a, b, strict=True):
        low, high = max(start, other_start), min(stop, other_stop)
        if low >= high:
            return None
        common.append((low, high))
    return tuple(common)


def hull(boxes: Sequence[Box]) -> Box:
    """Return the smallest box that holds all of `boxes`."""
    return tuple((min(i[0] for i in axis), max(i[1] for i in axis)) for axis in zip(*boxes, strict=True))


def relative(inner: Box, outer: Box) -> Box:
    """Return `inner` in coordinates that start at the corner of `outer`."""
    return tuple((a - o, b - o) for (a, b), (o, _) in zip(inner, outer, strict=True))


def slices(box: Box) -> tuple[slice, ...]:
    """Return the index that cuts `box` out of a tensor."""
    return tuple(slice(start, stop) for start, stop in box)


def sizes(box: Box) -> tuple[int, ...]:
    """Return the length of each interval."""
    return tuple(stop - start for start, stop in box)


def fuse(boxes: Iterable[Box]) -> list[Box]:
    """Merge disjoint boxes that share a whole face, until none do; the result is sorted."""
    merged = sorted(boxes)
    before = len(merged) + 1
    while 1 < len(merged) < before:
        before = len(merged)
        for axis in range(len(merged[0])):
            merged = _fuse_along(merged, axis)
    return sorted(merged)


def _fuse_along(boxes: list[Box], axis: int) -> list[Box]:
    ordered = sorted(boxes, key=lambda b: (b[:axis], b[axis + 1 :], b[axis]))
    out: list[Box] = []
    for box in ordered:
        if out and _touches(out[-1], box, axis):
            out[-1] = (*box[:axis], (out[-1][axis][0], box[axis][1]), *box[axis + 1 :])
        else:
            out.append(box)
    return out


def _touches(a: Box, b: Box, axis: int) -> bool:
    return a[axis][1] == b[axis][0] and a[:axis] == b[:axis] and a[axis + 1 :] == b[axis + 1 :]


def cells(boxes: Sequence[Box]) -> tuple[list[list[int]], list[tuple[slice, ...]]]:
    """Return the grid on which every box is a block of cells: break points for each axis, and each box's index."""
    if not boxes:
        return [], []
    breaks = [sorted({edge for interval in axis for edge in interval}) for axis in zip(*boxes, strict=True)]
    place = [{edge: i for i, edge in enumerate(axis)} for axis in breaks]
    index = [tuple(slice(place[d][a], place[d][b]) for d, (a, b) in enumerate(box)) for box in boxes]
    return breaks, index


def cell_box(breaks: list[list[int]], cell: Sequence[int]) -> Box:
    """Return the box of one cell of a grid."""
    return tuple((axis[i], axis[i + 1]) for axis, i in zip(breaks, cell, strict=True))


def cover(boxes: Sequence[Box]) -> list[Box]:
    """Return disjoint fused boxes with the same points as `boxes`, which may overlap."""
    distinct = sorted(set(boxes))
    if len(distinct) <= 1:
        return distinct
    around = hull(distinct)
    if around in distinct:
        return [around]
    breaks, index = cells(distinct)
    marked = np.zeros([len(axis) - 1 for axis in breaks], dtype=bool)
    for where in index:
        marked[where] = True
    return fuse(cell_box(breaks, cell) for cell in np.argwhere(marked).tolist())


def split_evenly(size: int, parts: int) -> list[Interval]:
    """Return at most `parts` intervals that cover [0, size) and differ in length by at most one."""
    parts = max(1, min(parts, size))
    edges = [size * i // parts for i in range(parts + 1)]
    return list(pairwise(edges))


def as_array(boxes: Sequence[Box]) -> Ints:
    """Return boxes of one rank as an int64 array [boxes, rank, 2]."""
    return np.array(boxes, dtype=np.int64).reshape(len(boxes), len(boxes[0]) if boxes else 0, 2)


def as_box(intervals: Sequence[Sequence[int]]) -> Box:
    """Return a box of one element of an array of boxes, as `tolist` gives it."""
    return tuple([(start, stop) for start, stop in intervals])


def intersections(a: Ints, b: Ints) -> Ints:
    """Return the common points of every box of `a` with every box of `b`, as int64 [len(a), len(b), rank, 2].

    Where they have none, the start of some interval is not below its stop.
    """
    low = np.maximum(a[:, None, :, 0], b[None, :, :, 0])
    high = np.minimum(a[:, None, :, 1], b[None, :, :, 1])
    return np.stack([low, high], axis=-1)


def are_boxes(intersected: Ints) -> npt.NDArray[np.bool_]:
    """Return which elements of what `intersections` gives have any points: bool [len(a), len(b)]."""
    found: npt.NDArray[np.bool_] = np.all(intersected[..., 0] < intersected[..., 1], axis=-1)
    return found


def find_common(a: tuple[Box, ...], b: tuple[Box, ...]) -> Mapping[int, Sequence[Box]]:
    """Return what the boxes of `a` have in common with the disjoint ones of `b`, fused, by number; without those that
    have nothing.

    The layers of a model, and plans of it, ask for the same again and again: short answers are remembered.
    """
    return _find_known_common(a, b) if len(a) * len(b) <= MAX_REMEMBERED else _find_common(a, b)


def _find_common(a: tuple[Box, ...], b: tuple[Box, ...]) -> Mapping[int, Sequence[Box]]:
    if not a or not b:
        return {}
    common = intersections(_known_array(a), as_array(b))
    hits: dict[int, list[Box]] = {}
    for row, column in np.argwhere(are_boxes(common)).tolist():
        hits.setdefault(row, []).append(as_box(common[row, column].tolist()))
    return {row: fuse(boxes) if len(boxes) > 1 else boxes for row, boxes in hits.items()}


_find_known_common = lru_cache(maxsize=20_000)(_find_common)
_known_array = lru_cache(maxsize=32)(as_array)  # machine after machine asks for what it needs of the same boxes


def overlaps(a: Sequence[Box] | Ints, b: Sequence[Box] | Ints) -> Ints:
    """Return how many points every box of `a` shares with every box of `b`, as int64 [len(a), len(b)]."""
    if not len(a) or not len(b):
        return np.zeros((len(a), len(b)), dtype=np.int64)
    left, right = (boxes if isinstance(boxes, np.ndarray) else as_array(boxes) for boxes in (a, b))
    common = intersections(left, right)
    points: Ints = np.clip(common[..., 1] - common[..., 0], 0, None).prod(axis=-1, dtype=np.int64)
    return points
