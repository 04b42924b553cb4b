"""The block graph: vertices are blocks, weighted by FLOPs; an edge weighs the bytes that cross if its blocks part.

A `Block` is a box of one operator's loops, the unit that is placed (splitting.py); a set of cut axes and a granularity
(axis_sets.py) say which there are.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from .csr_graph import Adjacency, Floats, adjacency
from .cut_axes import CutAxes, paired_axes, parts_by_op, spatial_axes, unit_axes, whole_axes
from ..ir.box import Box, Ints
from ..ir.graph import STATE_KINDS, Op, Operand, TensorInfo
from .block_grid import require_room
from .levels import level_groups
from .blocks import Block, Blocks, blocks, homes

__all__ = [
    "Block",
    "Blocks",
    "CutAxes",
    "block_graph",
    "blocks",
    "level_groups",
    "paired_axes",
    "parts_by_op",
    "placed",
    "spatial_axes",
    "unit_axes",
    "whole_axes",
]

Edges = tuple[Ints, Ints, Floats]  # one end, the other, bytes


def block_graph(found: Blocks) -> Adjacency:
    """The undirected graph of blocks 0..n-1.

    A block that reads what another computes is joined to it; blocks that read the same parameter region are joined to
    the first of them, since the region then travels and its gradient returns. Raises Infeasible (E405) where there are
    too many blocks or edges.
    """
    require_room(0, blocks=len(found))
    tensors = found.graph.tensors
    edges: list[Edges] = []
    for name, readers in found.readers.items():
        info = tensors[name]
        if info.kind == "value":
            edges += [_value(found, info, reader, operand) for reader, operand in readers]
        elif info.kind in STATE_KINDS:
            edges.append(_state(found, info, readers))
        require_room(sum(len(size) for _, _, size in edges))
    a, b, size = (
        np.concatenate([np.zeros(0, dtype=kind), *(edge[i] for edge in edges)]) for i, kind in enumerate(KINDS)
    )
    return adjacency(found.flops, a, b, size, homes(found))


KINDS = (np.int64, np.int64, np.float64)


def _value(found: Blocks, info: TensorInfo, reader: Op, operand: Operand) -> Edges:
    made, parts = found.made(info)
    met = found.meetings(reader, operand, made)
    require_room(len(met.cells) * parts)
    first = found.first[found.producers[info.name].name]
    makers: Ints = np.add.outer(first + met.cells * parts, np.arange(parts)).reshape(-1)
    size: Floats = np.repeat(met.points, parts).astype(np.float64) * info.element_bytes
    return makers, np.repeat(met.blocks, parts), size


def _state(found: Blocks, info: TensorInfo, readers: Iterable[tuple[Op, Operand]]) -> Edges:
    """Every region's first reader, joined to the others."""
    readers = list(readers)
    cells = found.cells(info, readers)
    met = [found.meetings(op, operand, cells) for op, operand in readers]
    block: Ints = np.concatenate([m.blocks for m in met])
    size = np.concatenate([m.points for m in met]).astype(np.float64) * info.element_bytes
    _, begin, number = np.unique(np.concatenate([m.cells for m in met]), return_index=True, return_inverse=True)
    return block[begin[number.reshape(-1)]], block, size


def placed(found: Iterable[Block], machine_of: Iterable[int]) -> Mapping[str, list[tuple[Box, int]]]:
    """Blocks and their machines, by operator."""
    out: dict[str, list[tuple[Box, int]]] = defaultdict(list)
    for block, machine in zip(found, machine_of, strict=True):
        out[block.op].append((block.box, machine))
    return out
