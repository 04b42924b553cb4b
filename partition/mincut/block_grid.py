"""`BlockGrid`: all blocks of one operator, as products of intervals, and which of them meet the boxes of a tensor.

What a block reads along an axis of a tensor depends on one loop at most. So meetings are products too, found axis by
axis: they take as long as there are of them, not as there are pairs of blocks.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...errors import Infeasible
from ..ir.box import Box, Interval, Ints
from ..ir.graph import Fixed, Follow, LoopNest, Operand, Reading, Window

# Beyond these numbers a graph of blocks takes gigabytes, and METIS takes minutes.
MAX_BLOCKS = 200_000
MAX_READS = 20_000_000


@dataclass(frozen=True)
class BlockGrid:
    """intervals: per loop (or axis) the intervals it is cut into, in order, [n, 2]. The last one runs fastest."""

    intervals: tuple[Ints, ...]

    @staticmethod
    def of(intervals: Sequence[Sequence[Interval]]) -> "BlockGrid":
        """From plain intervals."""
        return BlockGrid(tuple(np.array(line, dtype=np.int64).reshape(-1, 2) for line in intervals))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Intervals of each loop."""
        return tuple(len(line) for line in self.intervals)

    @cached_property
    def key(self) -> tuple[bytes, ...]:
        """The intervals as something that can be hashed."""
        return tuple(line.tobytes() for line in self.intervals)

    @cached_property
    def count(self) -> int:
        """Blocks."""
        return math.prod(self.shape)

    def boxes(self) -> Iterator[Box]:
        """All blocks, in order."""
        lines: list[list[Interval]] = [[(a, b) for a, b in line.tolist()] for line in self.intervals]
        return itertools.product(*lines)

    @cached_property
    def volumes(self) -> Ints:
        """Points of each block, in order."""
        out = np.ones(1, dtype=np.int64)
        for line in self.intervals:
            out = np.multiply.outer(out, line[:, 1] - line[:, 0]).reshape(-1)
        return out

    def find_holders(self, cells: "BlockGrid") -> Ints:
        """The block that holds each of `cells`, whose edges are these and others: [cells]."""
        out = np.zeros(1, dtype=np.int64)
        for coarse, fine in zip(self.intervals, cells.intervals, strict=True):
            at = np.searchsorted(coarse[:, 0], fine[:, 0], side="right") - 1
            out = np.add.outer(out * len(coarse), at).reshape(-1)
        return out


@dataclass(frozen=True)
class BlockReads:
    """Which cell of a tensor's grid is read by which block, and how many points of it: [reads] each."""

    cells: Ints
    blocks: Ints
    points: Ints


@dataclass(frozen=True)
class AxisIntervals:
    """BlockReads along one axis: positions of cells, positions of intervals of the loop (-1: of none), lengths."""

    loop: int
    cells: Ints
    digits: Ints
    lengths: Ints


def read_intervals(nest: LoopNest, operand: Operand, grid: BlockGrid, extents: Sequence[int]) -> list[tuple[int, Ints]]:
    """Per axis of an operand: the loop that it follows (-1: none), and what each interval of the loop reads, [n, 2]."""
    return [_read_interval(r, nest, grid, extent) for r, extent in zip(operand.readings, extents, strict=True)]


def _read_interval(reading: Reading, nest: LoopNest, grid: BlockGrid, extent: int) -> tuple[int, Ints]:
    match reading:
        case Follow(loop):
            return loop, grid.intervals[loop]
        case Window(loop, stride, offset, width, covers):
            start, stop = grid.intervals[loop][:, 0], grid.intervals[loop][:, 1]
            low = np.maximum(0, start * stride + offset)
            high = np.minimum(extent, (stop - 1) * stride + offset + width)
            if covers and len(start) == 1:
                low, high = np.zeros_like(low), np.full_like(high, extent)
            return loop, np.stack([low, high], axis=1)
        case Fixed(start_at, stop_at):
            return -1, np.array([[start_at, stop_at]], dtype=np.int64)
        case _:
            return -1, np.array([[0, extent]], dtype=np.int64)


def find_reads(
    cells: BlockGrid, nest: LoopNest, operand: Operand, grid: BlockGrid, extents: Sequence[int]
) -> BlockReads:
    """Find which cells of a tensor are read by which blocks of an operator, through one operand.

    cells: a grid over the tensor's axes. Raises Infeasible where there are too many to be held.
    """
    origin = nest.reduction_loops if operand.once else frozenset()
    lines = [
        _axis_intervals(line, region, loop, first=loop in origin)
        for line, (loop, region) in zip(cells.intervals, read_intervals(nest, operand, grid, extents), strict=True)
    ]
    free = [i for i in range(len(nest.loops)) if i not in {line.loop for line in lines}]
    digits_of_free = {i: np.arange(1 if i in origin else grid.shape[i], dtype=np.int64) for i in free}
    check_graph_size(math.prod(len(line.cells) for line in lines) * math.prod(len(d) for d in digits_of_free.values()))
    cell, points = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    digits: dict[int, Ints] = {}
    for axis, line in enumerate(lines):
        cell = np.add.outer(cell * cells.shape[axis], line.cells).reshape(-1)
        points = np.multiply.outer(points, line.lengths).reshape(-1)
        again = np.tile(line.digits, len(cell) // len(line.digits) if len(line.digits) else 0)
        digits = {loop: np.repeat(digit, len(line.digits)) for loop, digit in digits.items()}
        if line.loop in digits:  # two axes follow one loop, as a diagonal does
            same = digits[line.loop] == again
            cell, points, digits = cell[same], points[same], {loop: d[same] for loop, d in digits.items()}
        elif line.loop >= 0:
            digits[line.loop] = again
    for loop, every in digits_of_free.items():
        digits = {other: np.repeat(digit, len(every)) for other, digit in digits.items()}
        digits[loop] = np.tile(every, len(cell))
        cell, points = np.repeat(cell, len(every)), np.repeat(points, len(every))
    block = np.zeros(len(cell), dtype=np.int64)
    for loop, size in enumerate(grid.shape):
        block = block * size + digits[loop]
    return BlockReads(cell, block, points)


def _axis_intervals(cells: Ints, region: Ints, loop: int, *, first: bool) -> AxisIntervals:
    """BlockReads of the intervals of one axis, which are in order and apart, with what is read of it."""
    low, high = region[:, 0], region[:, 1]
    begin = np.searchsorted(cells[:, 1], low, side="right")
    end = np.searchsorted(cells[:, 0], high, side="left")
    count = np.where(high > low, np.maximum(0, end - begin), 0)
    if first:
        count[1:] = 0
    digits = np.repeat(np.arange(len(region), dtype=np.int64), count)
    before = np.repeat(np.cumsum(count) - count, count)
    at = np.arange(len(digits), dtype=np.int64) - before + np.repeat(begin, count)
    lengths = np.minimum(cells[at, 1], high[digits]) - np.maximum(cells[at, 0], low[digits])
    return AxisIntervals(loop, at, digits, lengths)


def check_graph_size(reads: int, *, blocks: int = 0) -> None:
    """Raise Infeasible where a graph would have so many edges, pins or blocks that a partitioner takes minutes."""
    for number, limit, what in ((reads, MAX_READS, "edges"), (blocks, MAX_BLOCKS, "blocks")):
        if number > limit:
            facts = f"a block graph of {number:.3g} {what}; a partitioner gets {limit:.3g} at most"
            raise Infeasible("E405", facts, fix="cut into fewer parts")


def refine_intervals(lines: Sequence[Ints]) -> Ints:
    """The intervals between all edges of several lists of intervals of one axis: [n, 2]."""
    edges = np.unique(np.concatenate([line.reshape(-1) for line in lines]))
    if len(edges) < 2:
        return np.array([[0, 0]], dtype=np.int64)
    return np.stack([edges[:-1], edges[1:]], axis=1)
