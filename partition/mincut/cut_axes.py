"""Sets of axes to cut along: image rows and columns, hidden units, every other hidden axis, tokens.

`CutAxes` is such a set with a granularity. An operator is cut along those of its loops whose axis is in the set; a
light operator that has none of them is cut along tokens, rows or the batch.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ..cluster.cost_model import class_of
from ..ir.box import volume
from ..ir.graph import STATE_KINDS, Fixed, Graph, Op, Window
from ..operators.sharding.cost_class import ATTENTION, CONTRACTION, CONVOLUTION, COPY, EMBEDDING, LOCAL, OPAQUE, VIEW

HEAVY = frozenset({ATTENTION, CONTRACTION, CONVOLUTION, EMBEDDING, LOCAL, OPAQUE})


@dataclass(frozen=True)
class CutAxes:
    """Axes to split along, into `parts` intervals each; with `reductions` also where they are summed over.

    Axes of one dimension, as heads and the width of a head, are split into `parts` altogether. light: cut light
    operators without any of these axes along tokens, rows or batch, sums included.
    """

    name: str
    axes: frozenset[int]
    parts: int
    reductions: bool = False
    light: bool = True

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of loops that are cut."""
        return ("parallel", "reduction") if self.reductions else ("parallel",)


def is_view(op: Op) -> bool:
    """Whether an operator only moves data, so that its boxes may stay where their input is: reshape, select, cat."""
    kind = class_of(op)
    moves = kind in (VIEW, COPY) or (op.nest.work == 0 and kind not in HEAVY)
    return moves and len(op.outputs) == 1 and not op.writes


def is_light(graph: Graph, op: Op) -> bool:
    """Whether an operator has few FLOPs and few parameters: norms, residual adds, dropout, pooling, losses."""
    if class_of(op) in HEAVY or is_view(op):
        return False
    read = {name for name in op.inputs if graph.tensors[name].kind in STATE_KINDS}
    held = sum(volume(graph.tensors[name].box) for name in read)
    return held <= max(volume(op.nest.box), 1)


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
    parameter_axes = {axis for t in graph.parameters for dim in t.axes for axis in dim}
    looped = {loop.axis for op in graph.ops for loop in op.nest.loops}
    return frozenset(parameter_axes & looped) - spatial_axes(graph) - frozenset(graph.batch_axes)


def whole_axes(graph: Graph) -> frozenset[int]:
    """Axes along which some operator reads a value whole or at one place: a head's width, queries beside keys."""
    out: set[int] = set()
    for op in graph.ops:
        for operand in op.nest.operands:
            info = graph.tensors[operand.tensor]
            axes = [axis for dim in info.axes for axis in dim]
            if info.kind == "value":
                read = zip(operand.readings, axes, strict=True)
                out |= {axis for reading, axis in read if reading is None or isinstance(reading, Fixed)}
    return frozenset(out)


def paired_axes(graph: Graph) -> frozenset[int]:
    """Every other hidden axis: column-parallel operators are followed by row-parallel ones (Megatron-LM, section 3).

    An axis that some operator keeps whole (the width that a layer norm normalises) is none of them; nor is one that is
    read whole where its operator has another (of heads and the width of a head, the heads).
    """
    units, chosen, summed_whole = unit_axes(graph), set[int](), set[int]()
    units -= {loop.axis for op in graph.ops for loop in op.nest.loops if loop.kind == "fixed"}
    whole = whole_axes(graph)
    for op in graph.ops:
        summed = {loop.axis for loop in op.nest.loops if loop.kind == "reduction"}
        output = {loop.axis for loop in op.nest.loops if loop.kind == "parallel" and loop.axis in units}
        if not summed or not output or summed & chosen or op.nest.work < 1:  # an embedding adds nothing up
            continue
        summed_whole |= summed
        chosen |= (output - summed_whole - whole) or (output - summed_whole)
    return frozenset(chosen)


def parts_by_op(graph: Graph, cut: CutAxes) -> dict[str, dict[int, int]]:
    """The axes that each operator is cut along, and into how many intervals.

    These are the axes of the set or, if a light operator has none of them, one of tokens, rows or batch.
    """
    dimension, whole = _dimensions(graph), whole_axes(graph)
    out: dict[str, dict[int, int]] = {}
    for op in graph.ops:
        loops = [x for x in op.nest.loops if x.kind in cut.kinds and x.axis in cut.axes]
        left: dict[int, int] = {}
        out[op.name] = {}
        for loop in sorted(loops, key=lambda x: (x.axis in whole, -x.size, x.axis)):
            group = dimension.get(loop.axis, loop.axis)
            parts = min(loop.size, left.get(group, cut.parts))
            left[group] = -(-left.get(group, cut.parts) // parts)
            out[op.name][loop.axis] = parts
    if cut.light and cut.axes and cut.parts > 1:
        light = [op for op in graph.ops if not out[op.name] and is_light(graph, op)]
        out |= {name: {axis: cut.parts} for name, axis in _token_axes(graph, light, cut.parts).items()}
    return out


def _dimensions(graph: Graph) -> dict[int, int]:
    """A number for each axis that is equal for axes of one dimension of some parameter."""
    out: dict[int, int] = {}
    for info in graph.parameters:
        for dim in info.axes:
            known = {out.get(axis, axis) for axis in dim}
            first = min(known, default=0)
            out |= {axis: first for axis, group in out.items() if group in known} | dict.fromkeys(dim, first)
    return out


def _token_axes(graph: Graph, light: Sequence[Op], parts: int) -> dict[str, int]:
    """One axis for each operator that is not a hidden unit; greedily the axis that divides most of them comes first."""
    units = unit_axes(graph)
    pending: dict[str, tuple[Op, dict[int, int]]] = {}
    for op in light:
        sizes = {loop.axis: loop.size for loop in op.nest.loops if loop.kind != "fixed" and loop.axis not in units}
        pending[op.name] = (op, sizes)
    out: dict[str, int] = {}
    while values := _value_of_axes(graph, list(pending.values()), parts):
        best = max(values, key=lambda axis: (values[axis], axis in graph.batch_axes, -axis))
        for name in [name for name, (_, sizes) in pending.items() if best in sizes]:
            out[name] = best
            del pending[name]
    return out


def _value_of_axes(graph: Graph, ops: Sequence[tuple[Op, dict[int, int]]], parts: int) -> dict[int, float]:
    """The value of each axis: points of the operators that it divides, less the state that each part needs whole."""
    out: dict[int, float] = defaultdict(float)
    for op, sizes in ops:
        for axis, size in sizes.items():
            held = [graph.tensors[name] for name in op.inputs if graph.tensors[name].kind in STATE_KINDS]
            shared = sum(math.prod(t.extents) for t in held if all(axis not in dim for dim in t.axes))
            out[axis] += volume(op.nest.box) * min(1.0, size / parts) - shared
    return out
