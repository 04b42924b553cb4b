"""Boxes of a tensor whose dimensions have other axes in another graph of the same model.

A dimension of 32 may be axes of 4 and 8 where a reshape divides it, and one axis elsewhere, as in the training and the
evaluation graph. A box of the one is then several boxes of the other, or boxes of single elements at worst.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from .box import Box, Interval, whole

Groups = Sequence[Sequence[int]]  # for each dimension the sizes of its axes, outermost first (`TensorInfo.sizes`)


def regroup_box(box: Box, groups: Groups, other: Groups) -> list[tuple[Box, Box]]:
    """Divide `box`, in the axes of `groups`, into boxes of these axes that are boxes in the axes of `other`, too.

    Returns each in both axes. Both have the same elements in the same order, so that one is a view of the other.
    """
    at, lines = 0, list[list[tuple[Box, Box]]]()
    for sizes, other_sizes in zip(groups, other, strict=True):
        runs = _common_runs(_runs(box[at : at + len(sizes)], sizes), sizes, other_sizes)
        lines.append([(_box_of_run(run, sizes), _box_of_run(run, other_sizes)) for run in runs])
        at += len(sizes)
    return [
        (tuple(itertools.chain(*(here for here, _ in parts))), tuple(itertools.chain(*(there for _, there in parts))))
        for parts in itertools.product(*lines)
    ]


def _common_runs(runs: list[Interval], *sizes: Sequence[int]) -> list[Interval]:
    """Divide runs of elements of a dimension until each is one box in all of its axes."""
    while True:
        divided = runs
        for axes in sizes:
            divided = [part for run in divided for part in _divide_run(run, axes)]
        if divided == runs:
            return runs
        runs = divided


def _runs(box: Box, sizes: Sequence[int]) -> list[Interval]:
    """Return the contiguous runs of elements of a dimension that a box of its axes has, in order."""
    last = max((i for i, size in enumerate(sizes) if box[i] != (0, size)), default=0)
    if not sizes:
        return [(0, 1)]
    inner = math.prod(sizes[last + 1 :])
    out = []
    for point in itertools.product(*(range(*interval) for interval in box[:last])):
        row = 0
        for place, size in zip(point, sizes, strict=False):
            row = row * size + place
        start, stop = ((row * sizes[last] + edge) * inner for edge in box[last])
        out.append((start, stop))
    return out


def _divide_run(run: Interval, sizes: Sequence[int]) -> Iterator[Interval]:
    """Divide a run into those that are boxes of the axes: the end of a row, whole rows, the beginning of a row."""
    start, stop = run
    if not sizes or run == (0, math.prod(sizes)):
        yield run
        return
    inner = math.prod(sizes[1:])
    first, last = -(-start // inner), stop // inner  # whole rows
    if first > last:
        row = last * inner
        yield from _shift(_divide_run((start - row, stop - row), sizes[1:]), row)
        return
    if start < first * inner:
        row = (first - 1) * inner
        yield from _shift(_divide_run((start - row, inner), sizes[1:]), row)
    if first < last:
        yield first * inner, last * inner
    if last * inner < stop:
        row = last * inner
        yield from _shift(_divide_run((0, stop - row), sizes[1:]), row)


def _shift(runs: Iterable[Interval], by: int) -> Iterator[Interval]:
    return ((start + by, stop + by) for start, stop in runs)


def _box_of_run(run: Interval, sizes: Sequence[int]) -> Box:
    """Return the box of a run that is one."""
    out = list[Interval]()
    start, stop = run
    for i in range(len(sizes)):
        inner = math.prod(sizes[i + 1 :])
        if (stop - start) >= inner:
            return (*out, (start // inner, stop // inner), *whole(sizes[i + 1 :]))
        place = start // inner
        out.append((place, place + 1))
        start, stop = start - place * inner, stop - place * inner
    return tuple(out)
