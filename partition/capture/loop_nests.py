"""From slots to loops: the nest of an operator with a row, and that of an opaque one, all whole."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch.utils.flop_counter import FlopCounterMode

from ..ir.arguments import call, decode
from ..ir.graph import Fixed, Follow, LoopInfo, Nest, Operand, Reading, TensorInfo, Window
from ..operators.signature import At, Signature, Sliding
from .dimension_labels import Slot, Spelling

Arguments = Mapping[str, object]


def nest(
    signature: Signature,
    spelling: Spelling,
    operands: Mapping[str, TensorInfo],
    sizes: Sequence[int],
) -> Nest:
    """The loops of an operator and how each operand is read.

    spelling: in the graph's axes; operands: by argument, in the order of the slots; sizes: of all axes.
    """
    whole = spelling.given_up | _blocked(spelling)
    gathered = signature.summed | signature.joined
    loops: list[LoopInfo] = []
    at: dict[str, list[int]] = {}
    for position, slot in ((i, slot) for i, slots in enumerate(spelling.slots) for slot in slots):
        label = slot.label
        if not isinstance(label, str) or label in at:
            continue
        kind = "parallel" if position == 0 else "reduction"
        if label in whole or label in signature.fixed or (position and label not in gathered):
            kind = "fixed"
        at[label] = list(range(len(loops), len(loops) + len(slot.axes)))
        loops += [LoopInfo(axis, sizes[axis], kind) for axis in slot.axes]
    read: list[Operand] = []
    for (argument, info), slots in zip(operands.items(), spelling.slots[1:], strict=True):
        readings = tuple(reading for slot in slots for reading in _readings(slot, sizes, at, whole))
        read.append(Operand(argument, info.name, readings, argument in signature.once))
        if argument in signature.again:
            read.append(Operand(f"{argument}@whole", info.name, (None,) * len(info.extents), False))
    joined = sorted(loop for label in signature.joined for loop in at.get(label, ()))
    return Nest(tuple(loops), tuple(read), signature.work, tuple(joined))


def _blocked(spelling: Spelling) -> set[str]:
    """Labels along which something slides that is not one axis."""
    several = {slot.label for slots in spelling.slots for slot in slots if len(slot.axes) != 1}
    return {label for label, slides in spelling.slides.items() if label in several or several.intersection(slides)}


def _readings(slot: Slot, sizes: Sequence[int], at: Mapping[str, list[int]], whole: set[str]) -> list[Reading]:
    match slot.label:
        case str(label) if label not in whole:
            return [Follow(loop) for loop in at[label]]
        case Sliding(label, stride, offset, extent, covers, divisor) if label not in whole:
            return [Window(at[label][0], stride, offset, extent, covers, divisor)]
        case At(start, stop) if len(slot.axes) == 1:
            return [Fixed(start, stop)]
        case At(start, stop) if stop - start == 1:
            return _one_index(start, [sizes[axis] for axis in slot.axes])
        case _:
            return [None] * len(slot.axes)


def _one_index(index: int, sizes: Sequence[int]) -> list[Reading]:
    """A single index of a dimension of several axes."""
    readings: list[Reading] = []
    for size in reversed(sizes):
        index, here = divmod(index, size)
        readings.append(Fixed(here, here + 1))
    return readings[::-1]


def opaque(
    target: str,
    arguments: Arguments,
    operands: Mapping[str, TensorInfo],
    outputs: Sequence[TensorInfo],
    sizes: Sequence[int],
) -> Nest:
    """The nest of an operator without a row: every operand whole, every loop fixed."""
    loops: tuple[LoopInfo, ...] = ()
    if len(outputs) == 1:
        loops = tuple(LoopInfo(axis, sizes[axis], "fixed") for dim in outputs[0].axes for axis in dim)
    read = tuple(Operand(name, info.name, (None,) * len(info.extents), False) for name, info in operands.items())
    touched = [info for info in (*outputs, *operands.values()) if info.kind != "noise"]
    points = max(1, math.prod(loop.size for loop in loops))
    return Nest(loops, read, _flops_on_meta(target, arguments, touched) / points)


def _flops_on_meta(target: str, arguments: Arguments, touched: Sequence[TensorInfo]) -> float:
    """FLOPs of a whole operator as torch counts them; where it does not, one for each element that is touched."""
    elements = float(sum(math.prod(info.shape) for info in touched))
    tensors = {info.name: info for info in touched}

    def on_meta(name: str) -> torch.Tensor:
        return torch.empty(tensors[name].shape, dtype=getattr(torch, tensors[name].dtype), device="meta")

    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            call(target, {name: decode(value, on_meta) for name, value in arguments.items()})
    except (NotImplementedError, RuntimeError):  # an operator that cannot run without data
        return elements
    return max(elements, float(counter.get_total_flops()))
