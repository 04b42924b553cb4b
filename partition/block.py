"""`Block`: a box of one operator's loops, the unit that is placed.

A set of cut axes and a granularity give the block graph: every operator is split along those of its loops whose axis
is in the set. Vertices are blocks, weighted by FLOPs; an edge is weighted by the bytes that cross if its blocks are
on different machines.
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from .box import Box, overlaps, split_evenly, volume
from .graph import STATE_KINDS, Graph, Op, Window, output_box, reads


@dataclass(frozen=True)
class Block:
    """One box of one operator. flops: forward."""

    op: str
    box: Box
    flops: float


@dataclass(frozen=True)
class CutAxes:
    """Axes to split along, into `parts` intervals each; with `reductions` also where they are summed over."""

    name: str
    axes: frozenset[int]
    parts: int
    reductions: bool = False


def blocks(graph: Graph, cut: CutAxes) -> list[Block]:
    """All blocks, in the order of the operators."""
    return [
        Block(op.name, box, op.nest.work * volume(box))
        for op in graph.ops
        for box in itertools.product(*_intervals(op, cut))
    ]


def _intervals(op: Op, cut: CutAxes) -> list[list[tuple[int, int]]]:
    kinds = ("parallel", "reduction") if cut.reductions else ("parallel",)
    return [
        split_evenly(loop.size, cut.parts if loop.axis in cut.axes and loop.kind in kinds else 1)
        for loop in op.nest.loops
    ]


def block_graph(graph: Graph, vertices: Sequence[Block]) -> nx.Graph:
    """The undirected graph of blocks 0..n-1; node attribute `flops`, edge attribute `bytes`.

    A block that reads what another computes is joined to it; blocks that read the same parameter region are joined to
    the first of them, since the region then travels and its gradient returns.
    """
    by_op: dict[str, list[int]] = defaultdict(list)
    for i, block in enumerate(vertices):
        by_op[block.op].append(i)
    out = nx.Graph()
    out.add_nodes_from((i, {"flops": block.flops}) for i, block in enumerate(vertices))
    producers, by_name = graph.producers, {op.name: op for op in graph.ops}
    users: dict[str, list[tuple[int, Box]]] = defaultdict(list)
    for op in graph.ops:
        for operand in op.nest.operands:
            info = graph.tensors[operand.tensor]
            read = [(i, reads(op.nest, operand, vertices[i].box, info.extents)) for i in by_op[op.name]]
            found = [(i, box) for i, box in read if box is not None]
            if info.kind == "value":
                maker = by_name[producers[info.name]]
                made = [(i, output_box(maker, info, vertices[i].box)) for i in by_op[maker.name]]
                _join(out, made, found, info.element_bytes)
            elif info.kind in STATE_KINDS:
                users[info.name] += found
    for name, found in users.items():
        for position in range(1, len(found)):
            _join(out, found[:1], found[position : position + 1], graph.tensors[name].element_bytes)
    return out


def _join(graph: nx.Graph, left: list[tuple[int, Box]], right: list[tuple[int, Box]], element_bytes: int) -> None:
    points = overlaps([box for _, box in left], [box for _, box in right])
    for row, column in zip(*points.nonzero(), strict=True):
        a, b = left[row][0], right[column][0]
        if a != b:
            size = int(points[row, column]) * element_bytes
            graph.add_edge(a, b, bytes=graph.get_edge_data(a, b, {"bytes": 0})["bytes"] + size)


def placed(vertices: Sequence[Block], machine_of: Sequence[int]) -> Mapping[str, list[tuple[Box, int]]]:
    """Blocks and their machines, by operator."""
    out: dict[str, list[tuple[Box, int]]] = defaultdict(list)
    for block, machine in zip(vertices, machine_of, strict=True):
        out[block.op].append((block.box, machine))
    return out


def spatial_axes(graph: Graph) -> frozenset[int]:
    """Axes that a convolution, pooling or local filter slides over: image rows and columns."""
    out: set[int] = set()
    for op in graph.ops:
        for operand in op.nest.operands:
            axes = [axis for dim in graph.tensors[operand.tensor].axes for axis in dim]
            for reading, axis in zip(operand.readings, axes, strict=True):
                if isinstance(reading, Window) and reading.covers:
                    out |= {axis, op.nest.loops[reading.loop].axis}
    return frozenset(out)


def unit_axes(graph: Graph) -> frozenset[int]:
    """Axes of parameters other than spatial ones: hidden units, heads, channels."""
    own = {axis for t in graph.parameters for dim in t.axes for axis in dim}
    looped = {loop.axis for op in graph.ops for loop in op.nest.loops}
    return frozenset(own & looped) - spatial_axes(graph) - frozenset(graph.batch_axes)


def paired_axes(graph: Graph) -> frozenset[int]:
    """Every other hidden axis: column-parallel operators are followed by row-parallel ones (Megatron-LM, section 3).

    An axis that some operator keeps whole (the width that a layer norm normalises) is none of them.
    """
    units, chosen, summed_whole = unit_axes(graph), set[int](), set[int]()
    units -= {loop.axis for op in graph.ops for loop in op.nest.loops if loop.kind == "fixed"}
    for op in graph.ops:
        summed = {loop.axis for loop in op.nest.loops if loop.kind == "reduction"}
        output = {loop.axis for loop in op.nest.loops if loop.kind == "parallel" and loop.axis in units}
        if not summed or not output or summed & chosen:
            continue
        summed_whole |= summed
        chosen |= output - summed_whole
    return frozenset(chosen)
