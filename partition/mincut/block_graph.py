"""The block graph: vertices are blocks, weighted by FLOPs; an edge weighs the bytes that cross if its blocks part.

A `Block` is a box of one operator's loops, the unit that is placed (blocks.py). A set of cut axes with a granularity
(cut_axes.py) says which blocks there are.
"""

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping

import numpy as np

from ..cluster.cost_model import class_of
from ..ir.box import Box, Ints
from ..ir.graph import STATE_KINDS, Graph, Op, Operand, TensorInfo
from ..operators.sharding.cost_class import EMBEDDING
from .block_grid import check_graph_size
from .blocks import Block, Blocks, find_anchors
from .csr_graph import CsrGraph, Floats, build_csr_graph
from .cut_axes import HEAVY, is_view
from .metis import MAX_LEVELS

WeightedEdges = tuple[Ints, Ints, Floats]  # one end, the other, bytes


def build_block_graph(blocks: Blocks) -> CsrGraph:
    """Build the undirected graph of blocks 0..n-1.

    A block has an edge to each block whose result it reads. Blocks that read the same region of a parameter have an
    edge to the first of them, since the region must travel and its gradient return. Raises Infeasible (E405) where
    there are too many blocks or edges.
    """
    check_graph_size(0, blocks=len(blocks))
    tensors = blocks.graph.tensors
    edges: list[WeightedEdges] = []
    count = 0
    for name, readers in blocks.readers.items():
        info = tensors[name]
        if info.kind == "value":
            met = [_value_edges(blocks, info, reader, operand) for reader, operand in readers]
        else:
            met = [_state_edges(blocks, info, readers)] if info.kind in STATE_KINDS else []
        edges += met
        count += sum(len(size) for _, _, size in met)
        check_graph_size(count)
    a, b, size = (
        np.concatenate([np.zeros(0, dtype=kind), *(edge[i] for edge in edges)]) for i, kind in enumerate(KINDS)
    )
    return build_csr_graph(blocks.flops, a, b, size, find_anchors(blocks))


KINDS = (np.int64, np.int64, np.float64)


def _value_edges(blocks: Blocks, info: TensorInfo, reader: Op, operand: Operand) -> WeightedEdges:
    maker_grid, parts = blocks.find_makers(info)
    met = blocks.find_reads(reader, operand, maker_grid)
    check_graph_size(len(met.cells) * parts)
    first = blocks.first[blocks.producers[info.name].name]
    makers: Ints = np.add.outer(first + met.cells * parts, np.arange(parts)).reshape(-1)
    size: Floats = np.repeat(met.points, parts).astype(np.float64) * info.travelling_bytes
    return makers, np.repeat(met.blocks, parts), size


def _state_edges(blocks: Blocks, info: TensorInfo, readers: Iterable[tuple[Op, Operand]]) -> WeightedEdges:
    """Edges from the first reader of every region to its other readers."""
    readers = list(readers)
    cells = blocks.cells(info, readers)
    met = [blocks.find_reads(op, operand, cells) for op, operand in readers]
    block: Ints = np.concatenate([m.blocks for m in met])
    size = np.concatenate([m.points for m in met]).astype(np.float64) * info.travelling_bytes
    _, begin, number = np.unique(np.concatenate([m.cells for m in met]), return_index=True, return_inverse=True)
    return block[begin[number.reshape(-1)]], block, size


def boxes_by_operator(blocks: Iterable[Block], machine_of: Iterable[int]) -> Mapping[str, list[tuple[Box, int]]]:
    """Group blocks and their machines by operator."""
    out: dict[str, list[tuple[Box, int]]] = defaultdict(list)
    for block, machine in zip(blocks, machine_of, strict=True):
        out[block.op].append((block.box, machine))
    return out


MIN_LEVEL_FRACTION = 1e-3  # of all FLOPs; an operator below this makes no level of its own


def level_groups(graph: Graph, limit: int = MAX_LEVELS) -> dict[str, int]:
    """The level group of every operator, from 0; -1 for operators that only move data.

    A level is a topological depth, counted over operators with real work; neighbouring levels are merged to groups of
    similar work. Within a group of several levels a pipeline is even, so the more groups the better. Light operators,
    if there are any, are a group of their own, the last. At most `limit` groups.
    """
    heavy = heavy_ops(graph)
    depth = _depths(graph, heavy)
    light = [op.name for op in graph.ops if op.name not in heavy and not is_view(op) and op.flops > 0]
    work: dict[int, float] = defaultdict(float)
    for op in graph.ops:
        if op.name in heavy:
            work[depth[op.name]] += op.flops
    group = _merge_levels(work, max(1, limit - 1 if light else limit))
    last = min(max(group.values(), default=-1) + 1, limit - 1)
    out = dict.fromkeys((op.name for op in graph.ops), -1) | dict.fromkeys(light, last)
    return out | {name: group[depth[name]] for name in heavy}


def heavy_ops(graph: Graph) -> set[str]:
    """Operators with real work: products, convolutions and attention that are not negligible in this graph."""
    minimum = MIN_LEVEL_FRACTION * math.fsum(op.flops for op in graph.ops)
    return {op.name for op in graph.ops if class_of(op) in HEAVY - {EMBEDDING} and op.flops > minimum}


def _depths(graph: Graph, heavy: Container[str]) -> dict[str, int]:
    """Operators with real work on the longest path to each operator, itself included."""
    out: dict[str, int] = {}
    producers = graph.producers
    for op in graph.ops:
        before = max((out[producers[name]] for name in op.inputs if name in producers), default=0)
        out[op.name] = before + (op.name in heavy)
    return out


def _merge_levels(work: Mapping[int, float], limit: int) -> dict[int, int]:
    """Merge levels in order to at most `limit` groups; each goes where the middle of its work falls."""
    if len(work) <= limit:
        return {level: i for i, level in enumerate(sorted(work))}
    total, before = math.fsum(work.values()), 0.0
    place: dict[int, int] = {}
    for level in sorted(work):
        place[level] = min(limit - 1, int(limit * (before + work[level] / 2) / total))
        before += work[level]
    number = {old: new for new, old in enumerate(sorted(set(place.values())))}
    return {level: number[old] for level, old in place.items()}
