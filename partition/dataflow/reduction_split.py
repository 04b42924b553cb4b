"""Cuts along joined loops, as of a softmax or of a batch norm's statistics, spelled out as two operators.

Every box first tells a few numbers about its part (the largest score and the sum of exponentials; count, mean and
squares); these go to all parts, and each then runs its box knowing the whole. One exchange forward, its transpose
backward, and bytes that do not grow with what is normalised. See row.Summary.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from ..ir.box import Box, intersect, volume
from .cut import Cut, Placed, overlapping
from ..ir.graph import Follow, Graph, LoopInfo, Nest, Op, Operand, TensorInfo, Window, is_joined
from ..operators.sharding_rule import PART, PARTS, Summary
from ..operators.registry import TABLE

DOUBLE, SINGLE = ("float64", 8), ("float32", 4)


def spelled(graph: Graph, cut: Cut) -> tuple[Graph, Cut]:
    """The graph and the cut with every operator that is cut along joined loops made two."""
    found = {op.name for op in graph.ops if any(is_joined(op.nest, box) for box, _ in cut.boxes[op.name])}
    if not found:
        return graph, cut
    ops: list[Op] = []
    tensors, boxes, folds = dict(graph.tensors), dict(cut.boxes), dict(cut.folds)
    for op in graph.ops:
        if op.name not in found:
            ops.append(op)
            continue
        placed = sorted(cut.boxes[op.name])
        slots = _slots([_others(op.nest, box) for box, _ in placed])
        told = _told(op, 1 + max(slots), graph.tensors)
        tensors[told.name] = told
        first, second = _part(op, told), _join(op, told)
        boxes[first.name] = [
            (((slot, slot + 1), told.box[1], *_others(op.nest, box), *_joined(op.nest, box)), machine)
            for slot, (box, machine) in zip(slots, placed, strict=True)
        ]
        boxes[op.name] = _where(op, placed, folds)
        if not any(loop.kind == "reduction" for loop in second.nest.loops):
            folds.pop(op.name, None)
        ops += [first, second]
    return msgspec.structs.replace(graph, ops=tuple(ops), tensors=tensors), replace(cut, boxes=boxes, folds=folds)


def changed(graph: Graph) -> set[str]:
    """Names of the operators of a graph, as spelled out, that the graph it was made of does not have so."""
    parts = {op.outputs[0] for op in graph.ops if op.row.endswith(PART)}
    return {op.name for op in graph.ops if parts.intersection((*op.inputs, *op.outputs))}


def _others(nest: Nest, box: Box) -> Box:
    return tuple(interval for i, interval in enumerate(box) if i not in nest.joined)


def _joined(nest: Nest, box: Box) -> Box:
    return tuple(box[i] for i in nest.joined)


def _slots(boxes: Sequence[Box]) -> list[int]:
    """A number for each box, other than those of the boxes that overlap it; 0, 1, .. among equal ones."""
    distinct = list(dict.fromkeys(boxes))
    if not overlapping(distinct):
        seen: dict[Box, int] = defaultdict(int)
        slots = []
        for box in boxes:
            slots.append(seen[box])
            seen[box] += 1
        return slots
    slots = []
    for i, box in enumerate(boxes):
        taken = {slots[j] for j in range(i) if _meet(boxes[j], box)}
        slots.append(next(slot for slot in range(i + 1) if slot not in taken))
    return slots


def _meet(a: Box, b: Box) -> bool:
    return not a or intersect(a, b) is not None


def _told(op: Op, slots: int, tensors: Mapping[str, TensorInfo]) -> TensorInfo:
    """The tensor that holds what all parts tell: [slots, width, *sizes of the other loops]."""
    summary = summary_of(op)
    output, name = tensors[op.outputs[0]], f"{op.name}.parts{slots}"
    read = [tensors[operand.tensor] for operand in op.nest.operands if operand.argument in summary.reads]
    others = [loop.size for i, loop in enumerate(op.nest.loops) if i not in op.nest.joined]
    sizes = (slots, summary.width, *others)
    dtype, element_bytes = DOUBLE if summary.exact or "float64" in (output.dtype, read[0].dtype) else SINGLE
    return TensorInfo(
        name=name,
        shape=sizes,
        dtype=dtype,
        kind="value",
        axes=tuple((-1,) for _ in sizes),
        sizes=tuple((size,) for size in sizes),
        stride=tuple(volume(tuple((0, size) for size in sizes[i + 1 :])) for i in range(len(sizes))),
        gradient=output.gradient and any(info.gradient for info in read),
        element_bytes=element_bytes,
    )


def summary_of(op: Op) -> Summary:
    """How the parts of an operator's joined loops learn of each other."""
    summary = TABLE[op.row].summary
    assert summary is not None, op.row
    return summary


def told_bytes(op: Op) -> int:
    """Bytes that a part tells for each point of the other loops, about."""
    summary = summary_of(op)
    return summary.width * (DOUBLE if summary.exact else SINGLE)[1]


def _part(op: Op, told: TensorInfo) -> Op:
    """The operator whose boxes tell of their parts. Its loops: slots, numbers told, the others, the joined ones."""
    nest, reads = op.nest, summary_of(op).reads
    others = [i for i in range(len(nest.loops)) if i not in nest.joined]
    order = [*others, *nest.joined]
    head = [LoopInfo(-1, size, "parallel") for size in told.shape[:2]]
    loops = (*head, *(LoopInfo(nest.loops[i].axis, nest.loops[i].size, "parallel") for i in order))
    position = {loop: 2 + at for at, loop in enumerate(order)}
    operands = tuple(_moved(operand, position) for operand in nest.operands if operand.argument in reads)
    work = nest.work / told.shape[1]
    return msgspec.structs.replace(
        op,
        name=f"{op.name}{PART}",
        arguments=_without_tensors(op, keep=reads),
        outputs=(told.name,),
        nest=Nest(loops, operands, work),
        row=op.row + PART,
        writes=(),
    )


def _join(op: Op, told: TensorInfo) -> Op:
    """The operator that runs knowing what all parts told; loops that only the parts ran over are gone."""
    nest = op.nest
    others = [i for i in range(len(nest.loops)) if i not in nest.joined]
    kept = list(range(len(nest.loops))) if _in_output(nest) else others
    position = {loop: at for at, loop in enumerate(kept)}
    operands = [_moved(operand, position) for operand in nest.operands if _within(operand, position)]
    readings = (None, None, *(Follow(position[i]) for i in others))
    operands.append(Operand(PARTS, told.name, readings, once=False))
    work = nest.work * (1 if _in_output(nest) else told.shape[0])
    loops, joined = tuple(nest.loops[i] for i in kept), nest.joined if _in_output(nest) else ()
    named = [operand.argument for operand in operands]
    return msgspec.structs.replace(
        op, arguments=_without_tensors(op, keep=named), nest=Nest(loops, tuple(operands), work, joined)
    )


def _in_output(nest: Nest) -> bool:
    """Whether the joined loops are the output's own, as a softmax's; a maximum's are not."""
    return all(nest.loops[i].kind != "reduction" for i in nest.joined)


def _where(op: Op, placed: Sequence[Placed], folds: Mapping[str, Sequence[Placed]]) -> list[Placed]:
    """The boxes of the second operator: as they were, or where a result without the joined loops is completed."""
    if _in_output(op.nest):
        return list(placed)
    if any(loop.kind == "reduction" and i not in op.nest.joined for i, loop in enumerate(op.nest.loops)):
        first = [box for box, _ in placed if all(box[i][0] == 0 for i in op.nest.joined)]
        at = dict(placed)
        return [(_others(op.nest, box), at[box]) for box in first]
    return list(folds[op.name])


def _within(operand: Operand, position: Mapping[int, int]) -> bool:
    return all(reading.loop in position for reading in operand.readings if isinstance(reading, Follow | Window))


def _moved(operand: Operand, position: Mapping[int, int]) -> Operand:
    """The operand with its loops at other positions."""
    readings = tuple(
        msgspec.structs.replace(reading, loop=position[reading.loop])
        if isinstance(reading, Follow | Window)
        else reading
        for reading in operand.readings
    )
    return msgspec.structs.replace(operand, readings=readings)


def _without_tensors(op: Op, *, keep: Iterable[str]) -> dict[str, object]:
    """The arguments without the tensors that are not read."""
    tensors = {operand.argument for operand in op.nest.operands} - set(keep)
    return {name: value for name, value in op.arguments.items() if name not in tensors}
