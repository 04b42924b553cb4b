"""Splits operators that are cut along a non-additive reduction, such as a softmax or a batch norm, into two operators.

1. The partial operator: every box computes a summary of its part, a few numbers (the largest score and the sum of
   exponentials of a softmax, as in Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; count,
   mean and squared deviations of a norm, as in Chan, Golub and LeVeque, 1979).
2. The combining operator: the summaries go to all parts, and each box then runs with the summary of the whole.

That is one exchange forward and its transpose backward, of bytes that do not grow with what is reduced. An operator's
sharding rule says how its summaries are made and combined (`Summary`).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from ..ir.box import Box, intersect, volume
from ..ir.graph import Follow, Graph, LoopInfo, LoopNest, Op, Operand, TensorInfo, Window, cuts_non_additive
from ..operators.registry import TABLE
from ..operators.sharding.sharding_rule import SUMMARIES, SUMMARY_SUFFIX, Summary
from .cut import Cut, PlacedBox, boxes_overlap

DOUBLE, SINGLE = ("float64", 8), ("float32", 4)


def split_reductions(graph: Graph, cut: Cut) -> tuple[Graph, Cut]:
    """Split every operator that is cut along a non-additive reduction, in the graph and in the cut."""
    split = {op.name for op in graph.ops if any(cuts_non_additive(op.nest, box) for box, _ in cut.boxes[op.name])}
    if not split:
        return graph, cut
    ops: list[Op] = []
    tensors, boxes, folds = dict(graph.tensors), dict(cut.boxes), dict(cut.folds)
    for op in graph.ops:
        if op.name not in split:
            ops.append(op)
            continue
        placed_boxes = sorted(cut.boxes[op.name])
        slots = _summary_slots([_other_intervals(op.nest, box) for box, _ in placed_boxes])
        summary_tensor = _summary_tensor(op, 1 + max(slots), graph.tensors)
        tensors[summary_tensor.name] = summary_tensor
        first, second = _partial_operator(op, summary_tensor), _combining_operator(op, summary_tensor)
        boxes[first.name] = [
            (
                (
                    (slot, slot + 1),
                    summary_tensor.box[1],
                    *_other_intervals(op.nest, box),
                    *_reduced_intervals(op.nest, box),
                ),
                machine,
            )
            for slot, (box, machine) in zip(slots, placed_boxes, strict=True)
        ]
        boxes[op.name] = _combining_boxes(op, placed_boxes, folds)
        if not any(loop.kind == "reduction" for loop in second.nest.loops):
            folds.pop(op.name, None)
        ops += [first, second]
    return msgspec.structs.replace(graph, ops=tuple(ops), tensors=tensors), replace(cut, boxes=boxes, folds=folds)


def split_operators(graph: Graph) -> set[str]:
    """Names of the operators in a graph that `split_reductions` has made."""
    parts = {op.outputs[0] for op in graph.ops if op.sharding_rule.endswith(SUMMARY_SUFFIX)}
    return {op.name for op in graph.ops if parts.intersection((*op.inputs, *op.outputs))}


def _other_intervals(nest: LoopNest, box: Box) -> Box:
    return tuple(interval for i, interval in enumerate(box) if i not in nest.non_additive)


def _reduced_intervals(nest: LoopNest, box: Box) -> Box:
    return tuple(box[i] for i in nest.non_additive)


def _summary_slots(boxes: Sequence[Box]) -> list[int]:
    """The row of the summary tensor for each box: overlapping boxes have different rows, equal ones 0, 1, ..."""
    distinct = list(dict.fromkeys(boxes))
    if not boxes_overlap(distinct):
        seen: dict[Box, int] = defaultdict(int)
        slots = []
        for box in boxes:
            slots.append(seen[box])
            seen[box] += 1
        return slots
    slots = []
    for i, box in enumerate(boxes):
        used_slots = {slots[j] for j in range(i) if _boxes_meet(boxes[j], box)}
        slots.append(next(slot for slot in range(i + 1) if slot not in used_slots))
    return slots


def _boxes_meet(a: Box, b: Box) -> bool:
    return not a or intersect(a, b) is not None


def _summary_tensor(op: Op, slots: int, tensors: Mapping[str, TensorInfo]) -> TensorInfo:
    """The tensor of all summaries: [slots, width, *sizes of the other loops]."""
    summary = reduction_summary(op)
    output, name = tensors[op.outputs[0]], f"{op.name}.parts{slots}"
    read = [tensors[operand.tensor] for operand in op.nest.operands if operand.argument in summary.reads]
    others = [loop.size for i, loop in enumerate(op.nest.loops) if i not in op.nest.non_additive]
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


def reduction_summary(op: Op) -> Summary:
    """Return how the parts of an operator's non-additive loops exchange their summaries."""
    summary = TABLE[op.sharding_rule].summary
    assert summary is not None, op.sharding_rule
    return summary


def summary_bytes(op: Op) -> int:
    """Bytes of a part's summary for each point of the other loops, about."""
    summary = reduction_summary(op)
    return summary.width * (DOUBLE if summary.exact else SINGLE)[1]


def _partial_operator(op: Op, summary_tensor: TensorInfo) -> Op:
    """The operator each box of which writes the summary of its part.

    Its loops: the slots, the numbers of a summary, the additive loops, the non-additive ones.
    """
    nest, reads = op.nest, reduction_summary(op).reads
    others = [i for i in range(len(nest.loops)) if i not in nest.non_additive]
    order = [*others, *nest.non_additive]
    head = [LoopInfo(-1, size, "parallel") for size in summary_tensor.shape[:2]]
    loops = (*head, *(LoopInfo(nest.loops[i].axis, nest.loops[i].size, "parallel") for i in order))
    position = {loop: 2 + at for at, loop in enumerate(order)}
    operands = tuple(_renumber_loops(operand, position) for operand in nest.operands if operand.argument in reads)
    work = nest.work / summary_tensor.shape[1]
    return msgspec.structs.replace(
        op,
        name=f"{op.name}{SUMMARY_SUFFIX}",
        arguments=_without_tensors(op, keep=reads),
        outputs=(summary_tensor.name,),
        nest=LoopNest(loops, operands, work),
        sharding_rule=op.sharding_rule + SUMMARY_SUFFIX,
        writes=(),
    )


def _combining_operator(op: Op, summary_tensor: TensorInfo) -> Op:
    """The operator that combines the summaries of all parts; it has no loops over which only the parts run."""
    nest = op.nest
    others = [i for i in range(len(nest.loops)) if i not in nest.non_additive]
    kept = list(range(len(nest.loops))) if _in_output(nest) else others
    position = {loop: at for at, loop in enumerate(kept)}
    operands = [_renumber_loops(operand, position) for operand in nest.operands if _reads_only(operand, position)]
    readings = (None, None, *(Follow(position[i]) for i in others))
    operands.append(Operand(SUMMARIES, summary_tensor.name, readings, once=False))
    work = nest.work * (1 if _in_output(nest) else summary_tensor.shape[0])
    loops, non_additive = tuple(nest.loops[i] for i in kept), nest.non_additive if _in_output(nest) else ()
    named = [operand.argument for operand in operands]
    return msgspec.structs.replace(
        op, arguments=_without_tensors(op, keep=named), nest=LoopNest(loops, tuple(operands), work, non_additive)
    )


def _in_output(nest: LoopNest) -> bool:
    """Whether the non-additive loops are the output's own, as a softmax's; a maximum's are not."""
    return all(nest.loops[i].kind != "reduction" for i in nest.non_additive)


def _combining_boxes(
    op: Op, placed_boxes: Sequence[PlacedBox], folds: Mapping[str, Sequence[PlacedBox]]
) -> list[PlacedBox]:
    """The boxes of the combining operator: as they were, or where a result without the reduced loops is completed."""
    if _in_output(op.nest):
        return list(placed_boxes)
    if any(loop.kind == "reduction" and i not in op.nest.non_additive for i, loop in enumerate(op.nest.loops)):
        first = [box for box, _ in placed_boxes if all(box[i][0] == 0 for i in op.nest.non_additive)]
        at = dict(placed_boxes)
        return [(_other_intervals(op.nest, box), at[box]) for box in first]
    return list(folds[op.name])


def _reads_only(operand: Operand, position: Mapping[int, int]) -> bool:
    return all(reading.loop in position for reading in operand.readings if isinstance(reading, Follow | Window))


def _renumber_loops(operand: Operand, position: Mapping[int, int]) -> Operand:
    """The operand with its loops renumbered."""
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
