"""From bound labels to loops: the loop nest of an operator with a sharding rule, and that of an opaque one."""

import math
from collections.abc import Mapping, Sequence

from ..ir.graph import Fixed, Follow, LoopInfo, LoopNest, Operand, Reading, TensorInfo, Window
from ..operators.call_flops import count_call_flops
from ..operators.sharding.signature import FixedRange, Signature, Sliding
from .dimension_labels import BoundSignature, LabelBinding

Arguments = Mapping[str, object]


def build_loop_nest(
    signature: Signature,
    bound: BoundSignature,
    operands: Mapping[str, TensorInfo],
    sizes: Sequence[int],
) -> LoopNest:
    """Return the loops of an operator and how each operand is read.

    bound: the signature in the graph's axes. operands: by argument, in the order of the bindings. sizes: of all axes.
    """
    whole = bound.given_up | _find_blocked(bound)
    reductions = signature.summed | signature.non_additive
    loops: list[LoopInfo] = []
    at: dict[str, list[int]] = {}
    for position, binding in ((i, binding) for i, tensor in enumerate(bound.bindings) for binding in tensor):
        label = binding.label
        if not isinstance(label, str) or label in at:
            continue
        kind = "parallel" if position == 0 else "reduction"
        if label in whole or label in signature.fixed or (position and label not in reductions):
            kind = "fixed"
        at[label] = list(range(len(loops), len(loops) + len(binding.axes)))
        loops += [LoopInfo(axis, sizes[axis], kind) for axis in binding.axes]
    read: list[Operand] = []
    for (argument, info), bindings in zip(operands.items(), bound.bindings[1:], strict=True):
        readings = tuple(reading for binding in bindings for reading in _readings(binding, sizes, at, whole))
        read.append(Operand(argument, info.name, readings, argument in signature.once))
        if argument in signature.again:
            read.append(Operand(f"{argument}@whole", info.name, (None,) * len(info.extents), False))
    non_additive = sorted(loop for label in signature.non_additive for loop in at.get(label, ()))
    return LoopNest(tuple(loops), tuple(read), signature.work, tuple(non_additive))


def _find_blocked(bound: BoundSignature) -> set[str]:
    """Return the labels of several axes, or none, along which a window slides; they stay whole."""
    several = {binding.label for tensor in bound.bindings for binding in tensor if len(binding.axes) != 1}
    return {label for label, windows in bound.windows.items() if label in several or several.intersection(windows)}


def _readings(
    binding: LabelBinding, sizes: Sequence[int], at: Mapping[str, list[int]], whole: set[str]
) -> list[Reading]:
    match binding.label:
        case str(label) if label not in whole:
            return [Follow(loop) for loop in at[label]]
        case Sliding(label, stride, offset, extent, covers, divisor) if label not in whole:
            return [Window(at[label][0], stride, offset, extent, covers, divisor)]
        case FixedRange(start, stop) if len(binding.axes) == 1:
            return [Fixed(start, stop)]
        case FixedRange(start, stop) if stop - start == 1:
            return _one_index(start, [sizes[axis] for axis in binding.axes])
        case _:
            return [None] * len(binding.axes)


def _one_index(index: int, sizes: Sequence[int]) -> list[Reading]:
    """Return how a single index of a dimension of several axes is read."""
    readings: list[Reading] = []
    for size in reversed(sizes):
        index, here = divmod(index, size)
        readings.append(Fixed(here, here + 1))
    return readings[::-1]


def build_opaque_nest(
    target: str,
    arguments: Arguments,
    operands: Mapping[str, TensorInfo],
    outputs: Sequence[TensorInfo],
    sizes: Sequence[int],
) -> LoopNest:
    """Return the loop nest of an operator without a rule: every operand is read whole, every loop is fixed."""
    loops: tuple[LoopInfo, ...] = ()
    if len(outputs) == 1:
        loops = tuple(LoopInfo(axis, sizes[axis], "fixed") for dim in outputs[0].axes for axis in dim)
    read = tuple(Operand(name, info.name, (None,) * len(info.extents), False) for name, info in operands.items())
    touched = [info for info in (*outputs, *operands.values()) if info.kind != "random"]
    points = max(1, math.prod(loop.size for loop in loops))
    return LoopNest(loops, read, _count_flops(target, arguments, touched) / points)


def _count_flops(target: str, arguments: Arguments, touched: Sequence[TensorInfo]) -> float:
    """Return the FLOPs of a whole operator by its formula, but one for each element that is touched at least."""
    elements = float(sum(math.prod(info.shape) for info in touched))
    counted = count_call_flops(target, arguments, {info.name: (info.shape, info.dtype) for info in touched})
    return max(elements, counted or 0.0)
