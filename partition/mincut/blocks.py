"""`Blocks`: every operator of a graph split into a grid of blocks, along a set of cut axes.

Operators that only move data are split as what they read is, so that each of their blocks can stay with one of it; or,
where that is an input or parts of a sum, as what reads them.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .csr_graph import Floats
from .cut_axes import CutAxes, is_view, parts_by_op
from ..ir.box import Box, Ints, split_evenly
from ..ir.graph import Follow, Graph, Op, Operand, TensorInfo, Window
from .block_grid import Grid, Meetings, meetings, refined, regions


@dataclass(frozen=True)
class Block:
    """One box of one operator. flops: forward."""

    op: str
    box: Box
    flops: float


@dataclass(frozen=True)
class Blocks:
    """All blocks of a graph, in the order of its operators; each is made only when one goes through them.

    grids: by operator.
    """

    graph: Graph
    grids: Mapping[str, Grid]

    def __len__(self) -> int:
        return sum(grid.count for grid in self.grids.values())

    def __iter__(self) -> Iterator[Block]:
        for op in self.graph.ops:
            grid = self.grids[op.name]
            for box, points in zip(grid.boxes(), grid.volumes().tolist(), strict=True):
                yield Block(op.name, box, op.nest.work * points)

    @cached_property
    def first(self) -> dict[str, int]:
        """The number of the first block of every operator."""
        out, before = {}, 0
        for op in self.graph.ops:
            out[op.name] = before
            before += self.grids[op.name].count
        return out

    @cached_property
    def flops(self) -> Floats:
        """FLOPs of each block, forward."""
        return np.concatenate([np.zeros(0), *(op.nest.work * self.grids[op.name].volumes() for op in self.graph.ops)])

    @cached_property
    def producers(self) -> dict[str, Op]:
        """The operator that computes each value."""
        return {output: op for op in self.graph.ops for output in op.outputs}

    @cached_property
    def readers(self) -> dict[str, list[tuple[Op, Operand]]]:
        """The operators that read each tensor, in order."""
        out: dict[str, list[tuple[Op, Operand]]] = defaultdict(list)
        for op in self.graph.ops:
            for operand in op.nest.operands:
                out[operand.tensor].append((op, operand))
        return out

    def made(self, info: TensorInfo) -> tuple[Grid, int]:
        """The boxes of a value that are made, and how many blocks make a part of the sum of each.

        The blocks of a box have successive numbers. Several outputs are each made whole.
        """
        op = self.producers[info.name]
        if len(op.outputs) != 1:
            return Grid.of([[(0, size)] for size in info.extents]), self.grids[op.name].count
        grid = Grid(self.grids[op.name].intervals[: len(info.extents)])
        return grid, self.grids[op.name].count // max(1, grid.count)

    def meetings(self, reader: Op, operand: Operand, cells: Grid) -> Meetings:
        """Which cells of an operand are read by which blocks, which are numbered over all operators."""
        extents = self.graph.tensors[operand.tensor].extents
        found = meetings(cells, reader.nest, operand, self.grids[reader.name], extents)
        return Meetings(found.cells, found.blocks + self.first[reader.name], found.points)

    def cells(self, info: TensorInfo, readers: Iterable[tuple[Op, Operand]], *made: Grid) -> Grid:
        """The grid of a tensor on which everything that is made or read of it is a block of cells."""
        lines: list[list[Ints]] = [[np.array([[0, size]], dtype=np.int64)] for size in info.extents]
        for grid in made:
            for line, intervals in zip(lines, grid.intervals, strict=True):
                line.append(intervals)
        for op, operand in readers:
            found = regions(op.nest, operand, self.grids[op.name], info.extents)
            for line, (_, region) in zip(lines, found, strict=True):
                line.append(region[region[:, 0] < region[:, 1]])
        return Grid(tuple(refined(line) for line in lines))


def blocks(graph: Graph, cut: CutAxes) -> Blocks:
    """All blocks, in the order of the operators."""
    intervals = parts_by_op(graph, cut)
    grids: dict[str, Grid] = {}
    found = Blocks(graph, grids)
    adrift: dict[str, Op] = {}
    for op in graph.ops:
        parts = [intervals[op.name].get(loop.axis, 1) if loop.kind != "fixed" else 1 for loop in op.nest.loops]
        grids[op.name] = Grid.of([split_evenly(loop.size, n) for loop, n in zip(op.nest.loops, parts, strict=True)])
        roots = _roots(found, op, adrift)
        if roots:
            grids[op.name] = _like_producers(found, op, roots)
        elif is_view(op):
            adrift[op.name] = op
    for op in reversed(adrift.values()):
        grids[op.name] = _like_reader(found, op)
    return found


def _roots(found: Blocks, op: Op, adrift: Container[str]) -> list[Operand]:
    """What a view reads that its blocks can stay with: a value made in full by the blocks of an operator.

    adrift: the views before it that have no such operand. Operators that are no views have none.
    """
    tensors = found.graph.tensors
    if not is_view(op):
        return []
    made = [o for o in op.nest.operands if tensors[o.tensor].kind == "value"]
    there = [o for o in made if found.producers[o.tensor].name not in adrift]
    return [o for o in there if found.made(tensors[o.tensor])[1] == 1]


def _like_producers(found: Blocks, op: Op, roots: Iterable[Operand]) -> Grid:
    """A view's grid: what each loop runs over is cut where the producers are."""
    lines: dict[int, list[Ints]] = defaultdict(list)
    for operand in roots:
        made, _ = found.made(found.graph.tensors[operand.tensor])
        for reading, intervals in zip(operand.readings, made.intervals, strict=True):
            match reading:
                case Follow(loop):
                    lines[loop].append(intervals)
                case Window(loop, stride, offset, _, _):
                    lines[loop].append(-((offset - intervals) // stride))
                case _:
                    pass
    return _with_lines(found, op, lines)


def _like_reader(found: Blocks, op: Op) -> Grid:
    """A view's grid: cut as the first that reads it is."""
    lines: dict[int, list[Ints]] = {}
    for reader, operand in found.readers[op.outputs[0]][:1]:
        for axis, reading in enumerate(operand.readings):
            if isinstance(reading, Follow):
                lines[axis] = [found.grids[reader.name].intervals[reading.loop]]
    return _with_lines(found, op, lines)


def _with_lines(found: Blocks, op: Op, lines: Mapping[int, list[Ints]]) -> Grid:
    """The grid of an operator, these of its loops cut at these edges."""
    out = list(found.grids[op.name].intervals)
    for at, line in lines.items():
        loop = op.nest.loops[at]
        if loop.kind == "parallel":
            out[at] = refined([np.array([[0, loop.size]]), *(np.clip(edges, 0, loop.size) for edges in line)])
    return Grid(tuple(out))


def homes(found: Blocks) -> Ints:
    """The block that each is to stay with: those of views with the one that they read or are read by; [blocks].

    A view's block that meets several blocks is free, as every block of other operators is.
    """
    home = np.arange(len(found), dtype=np.int64)
    adrift: set[str] = set()
    for op in found.graph.ops:
        if not is_view(op):
            continue
        roots = _roots(found, op, adrift)
        if not roots:
            adrift.add(op.name)
        _link(home, [_sources(found, op, operand) for operand in roots] or [_targets(found, op)])
    while True:
        further = home[home]
        if (further == home).all():
            return home
        home = further


def _link(home: Ints, ways: Iterable[Meetings]) -> None:
    """Set the home of blocks that meet exactly one cell in some way; of several ways, that with the most points."""
    best: dict[int, int] = {}
    for way in ways:
        own, at, count = np.unique(way.blocks, return_index=True, return_counts=True)
        for block, i in zip(own[count == 1].tolist(), at[count == 1].tolist(), strict=True):
            if best.get(block, 0) < way.points[i]:
                best[block] = int(way.points[i])
                home[block] = way.cells[i]


def _sources(found: Blocks, view: Op, operand: Operand) -> Meetings:
    """Blocks of a view, and the blocks that made what they read, in the place of cells."""
    info = found.graph.tensors[operand.tensor]
    way = found.meetings(view, operand, found.made(info)[0])
    return Meetings(way.cells + found.first[found.producers[info.name].name], way.blocks, way.points)


def _targets(found: Blocks, view: Op) -> Meetings:
    """Blocks of a view, and the blocks of its first reader, in the place of cells."""
    none = np.zeros(0, dtype=np.int64)
    for reader, operand in found.readers[view.outputs[0]][:1]:
        way = found.meetings(reader, operand, found.made(found.graph.tensors[view.outputs[0]])[0])
        return Meetings(way.blocks, way.cells + found.first[view.name], way.points)
    return Meetings(none, none, none)
