"""`Blocks`: every operator of a graph, split into a grid of blocks along a set of cut axes.

An operator that only moves data, a view, is split as what it reads is, so that each of its blocks can stay with one
block of that, its anchor. Where it reads an input or partial sums, it is split as its first reader is.
"""

from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ..ir.box import Box, Ints, split_evenly
from ..ir.graph import Follow, Graph, Op, Operand, TensorInfo, Window
from .block_grid import BlockGrid, BlockReads, find_reads, read_intervals, refine_intervals
from .csr_graph import Floats
from .cut_axes import CutAxes, is_view, parts_by_op

MAX_KNOWN_READS = 10_000  # more are found anew each time, since they take memory


@dataclass(frozen=True)
class Block:
    """One box of one operator. flops: forward."""

    op: str
    box: Box
    flops: float


@dataclass(frozen=True)
class Blocks:
    """All blocks of a graph, in the order of its operators. A `Block` exists only while one iterates.

    grids: by operator. known: what was found of reads already; operators of repeated layers read alike.
    """

    graph: Graph
    grids: Mapping[str, BlockGrid]
    known: dict[Hashable, BlockReads] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return sum(grid.count for grid in self.grids.values())

    def __iter__(self) -> Iterator[Block]:
        for op in self.graph.ops:
            grid = self.grids[op.name]
            for box, points in zip(grid.boxes(), grid.volumes.tolist(), strict=True):
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
        return np.concatenate([np.zeros(0), *(op.nest.work * self.grids[op.name].volumes for op in self.graph.ops)])

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

    def find_makers(self, info: TensorInfo) -> tuple[BlockGrid, int]:
        """The boxes in which a value is made, and how many blocks make a partial sum of each.

        The blocks of a box have successive numbers. Of several outputs each is made whole.
        """
        op = self.producers[info.name]
        if len(op.outputs) != 1:
            return BlockGrid.of([[(0, size)] for size in info.extents]), self.grids[op.name].count
        grid = BlockGrid(self.grids[op.name].intervals[: len(info.extents)])
        return grid, self.grids[op.name].count // max(1, grid.count)

    def find_reads(self, reader: Op, operand: Operand, cells: BlockGrid) -> BlockReads:
        """Which cells of an operand are read by which blocks; blocks are numbered over all operators."""
        extents = self.graph.tensors[operand.tensor].extents
        nest, grid = reader.nest, self.grids[reader.name]
        origin = nest.reduction_loops if operand.once else frozenset()
        key = (cells.key, grid.key, operand.readings, origin, extents)
        reads = self.known.get(key)
        if reads is None:
            reads = find_reads(cells, nest, operand, grid, extents)
            if len(reads.cells) <= MAX_KNOWN_READS:
                self.known[key] = reads
        return BlockReads(reads.cells, reads.blocks + self.first[reader.name], reads.points)

    def cells(self, info: TensorInfo, readers: Iterable[tuple[Op, Operand]], *maker_grids: BlockGrid) -> BlockGrid:
        """The coarsest grid of a tensor on which all that is made or read of it consists of whole cells."""
        lines: list[list[Ints]] = [[np.array([[0, size]], dtype=np.int64)] for size in info.extents]
        for grid in maker_grids:
            for line, intervals in zip(lines, grid.intervals, strict=True):
                line.append(intervals)
        for op, operand in readers:
            regions = read_intervals(op.nest, operand, self.grids[op.name], info.extents)
            for line, (_, region) in zip(lines, regions, strict=True):
                line.append(region[region[:, 0] < region[:, 1]])
        return BlockGrid(tuple(refine_intervals(line) for line in lines))


def split_into_blocks(graph: Graph, cut: CutAxes) -> Blocks:
    """Split all operators of a graph into blocks."""
    intervals = parts_by_op(graph, cut)
    grids: dict[str, BlockGrid] = {}
    blocks = Blocks(graph, grids)
    unanchored_views: dict[str, Op] = {}
    alike: dict[Hashable, BlockGrid] = {}  # one grid for all operators that have it, which knows its sizes
    for op in graph.ops:
        parts = [intervals[op.name].get(loop.axis, 1) if loop.kind != "fixed" else 1 for loop in op.nest.loops]
        grids[op.name] = BlockGrid.of(
            [split_evenly(loop.size, n) for loop, n in zip(op.nest.loops, parts, strict=True)]
        )
        roots = _anchoring_operands(blocks, op, unanchored_views)
        if roots:
            grids[op.name] = _like_producers(blocks, op, roots)
        elif is_view(op):
            unanchored_views[op.name] = op
        grids[op.name] = alike.setdefault(grids[op.name].key, grids[op.name])
    for op in reversed(unanchored_views.values()):
        grids[op.name] = _like_reader(blocks, op)
    return blocks


def _anchoring_operands(blocks: Blocks, op: Op, unanchored_views: Container[str]) -> list[Operand]:
    """The operands of a view that its blocks can stay with: values whose boxes are each made by one block.

    unanchored_views: the views before it that have no such operand. Operators that are no views have none.
    """
    tensors = blocks.graph.tensors
    if not is_view(op):
        return []
    values = [o for o in op.nest.operands if tensors[o.tensor].kind == "value"]
    anchored = [o for o in values if blocks.producers[o.tensor].name not in unanchored_views]
    return [o for o in anchored if blocks.find_makers(tensors[o.tensor])[1] == 1]


def _like_producers(blocks: Blocks, op: Op, roots: Iterable[Operand]) -> BlockGrid:
    """The grid of a view that is cut where its producers are."""
    lines: dict[int, list[Ints]] = defaultdict(list)
    for operand in roots:
        maker_grid, _ = blocks.find_makers(blocks.graph.tensors[operand.tensor])
        for reading, intervals in zip(operand.readings, maker_grid.intervals, strict=True):
            match reading:
                case Follow(loop):
                    lines[loop].append(intervals)
                case Window(loop, stride, offset, _, _):
                    lines[loop].append(-((offset - intervals) // stride))
                case _:
                    pass
    return _grid_with_edges(blocks, op, lines)


def _like_reader(blocks: Blocks, op: Op) -> BlockGrid:
    """The grid of a view that is cut as its first reader is."""
    lines: dict[int, list[Ints]] = {}
    for reader, operand in blocks.readers[op.outputs[0]][:1]:
        for axis, reading in enumerate(operand.readings):
            if isinstance(reading, Follow):
                lines[axis] = [blocks.grids[reader.name].intervals[reading.loop]]
    return _grid_with_edges(blocks, op, lines)


def _grid_with_edges(blocks: Blocks, op: Op, lines: Mapping[int, list[Ints]]) -> BlockGrid:
    """The grid of an operator with some of its loops cut at other edges."""
    out = list(blocks.grids[op.name].intervals)
    for at, line in lines.items():
        loop = op.nest.loops[at]
        if loop.kind == "parallel":
            out[at] = refine_intervals([np.array([[0, loop.size]]), *(np.clip(edges, 0, loop.size) for edges in line)])
    return BlockGrid(tuple(out))


def find_anchors(blocks: Blocks) -> Ints:
    """Find the anchor of each block, [blocks]: for a view's block the one that it reads, or that reads it.

    A view's block that meets several blocks is its own anchor, that is, free; so is every block of other operators.
    """
    anchor = np.arange(len(blocks), dtype=np.int64)
    unanchored_views: set[str] = set()
    for op in blocks.graph.ops:
        if not is_view(op):
            continue
        roots = _anchoring_operands(blocks, op, unanchored_views)
        if not roots:
            unanchored_views.add(op.name)
        _anchor_blocks(anchor, [_maker_reads(blocks, op, operand) for operand in roots] or [_reader_reads(blocks, op)])
    while True:
        further = anchor[anchor]
        if (further == anchor).all():
            return anchor
        anchor = further


def _anchor_blocks(anchor: Ints, ways: Iterable[BlockReads]) -> None:
    """Set the anchor of blocks that meet exactly one cell; of several operands, that with the most points counts."""
    best: dict[int, int] = {}
    for way in ways:
        own, at, count = np.unique(way.blocks, return_index=True, return_counts=True)
        for block, i in zip(own[count == 1].tolist(), at[count == 1].tolist(), strict=True):
            if best.get(block, 0) < way.points[i]:
                best[block] = int(way.points[i])
                anchor[block] = way.cells[i]


def _maker_reads(blocks: Blocks, view: Op, operand: Operand) -> BlockReads:
    """The blocks of a view, and in the place of cells the blocks that made what they read."""
    info = blocks.graph.tensors[operand.tensor]
    way = blocks.find_reads(view, operand, blocks.find_makers(info)[0])
    return BlockReads(way.cells + blocks.first[blocks.producers[info.name].name], way.blocks, way.points)


def _reader_reads(blocks: Blocks, view: Op) -> BlockReads:
    """The blocks of a view, and in the place of cells the blocks of its first reader."""
    none = np.zeros(0, dtype=np.int64)
    for reader, operand in blocks.readers[view.outputs[0]][:1]:
        way = blocks.find_reads(reader, operand, blocks.find_makers(blocks.graph.tensors[view.outputs[0]])[0])
        return BlockReads(way.blocks, way.cells + blocks.first[view.name], way.points)
    return BlockReads(none, none, none)
