"""A call in smaller shapes: what follows what does not depend on how much there is of it, but the time to see it does.

Equal sizes shrink together, and so do their multiples where the operator wants them to, as for the gates of a
recurrent layer. Whether an operator takes the smaller shapes, and gives what they say, is seen without values.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from ..operators.call_flops import count_call_flops
from .operator_call import OperatorCall

SMALL_ELEMENTS = 4096  # a call of fewer is tried as it is
MAX_ELEMENTS = 1_000_000
MAX_FLOPS = 1e8
MIN_SIZE = 5  # a dimension that shrinks still has some parts of unlike lengths


def shrink_call(call: OperatorCall) -> OperatorCall | None:
    """Return the call in shapes small enough to be run often; None where there are none."""
    small, kept = call, _list_sizes_of_weights(call)
    for size in sorted(_list_sizes(call) - kept, reverse=True):
        if _count_elements(small) <= SMALL_ELEMENTS:
            break
        if size > MIN_SIZE and size in _list_sizes(small):
            taken = (_take(small, other) for other in _propose(small, size, kept))
            small = next((other for other in taken if other is not None), small)
    if _count_elements(small) > MAX_ELEMENTS:
        return None
    shapes = {operand.name: (operand.shape, operand.dtype) for operand in small.operands}
    return small if (count_call_flops(small.target, small.plain, shapes) or 0.0) <= MAX_FLOPS else None


def _list_sizes_of_weights(call: OperatorCall) -> set[int]:
    """Return the sizes of the weights of a recurrent layer, which torch itself does not compare with one another."""
    return {size for operand in call.operands if operand.name.startswith("params[") for size in operand.shape}


def _list_sizes(call: OperatorCall) -> set[int]:
    return {size for operand in call.operands for size in operand.shape}


def _count_elements(call: OperatorCall) -> int:
    return sum(math.prod(shape) for shape in (call.output, *(operand.shape for operand in call.operands)))


def _propose(call: OperatorCall, size: int, kept: set[int]) -> Iterator[OperatorCall]:
    """Yield the call with dimensions of `size` smaller, alone and with its multiples."""
    taken = {*_list_sizes(call), *call.output}
    smaller = next((n for n in range(MIN_SIZE, size) if n not in taken), None)
    if smaller is None:
        return
    yield call.shaped({size: smaller})
    multiples: Mapping[int, int] = {n: n // size * smaller for n in taken - kept if n and n % size == 0}
    if len(multiples) > 1:
        yield call.shaped(multiples)


def _take(call: OperatorCall, smaller: OperatorCall) -> OperatorCall | None:
    """Return the smaller call with the shape that it gives, where every dimension of the output that has the size of
    one of an operand still has; None where it has not, or the operator does not run in these shapes.
    """
    tensors = {o.name: torch.empty(o.shape, dtype=o.probe_dtype, device="meta") for o in smaller.operands}
    try:
        shape = tuple(smaller.run(tensors).shape)
    except Exception:  # whatever an operator raises: then it does not take these shapes
        return None
    sizes = _list_sizes(call)
    kept = len(shape) == len(smaller.output) and all(
        before not in sizes or found == wanted
        for before, found, wanted in zip(call.output, shape, smaller.output, strict=True)
    )
    return replace(smaller, output=shape) if kept else None
