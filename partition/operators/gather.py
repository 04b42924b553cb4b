"""Assembles a box of a tensor from pieces that hold parts of it; backward divides its gradient among them.

Where each part goes is worked out once, from the boxes; then tensors are put together in every step.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..ir.box import Box, intersect, relative, sizes, slices, volume

Assembly = Callable[[Sequence[Tensor]], Tensor]


def prepare_gather(box: Box, held: Sequence[Box]) -> Assembly:
    """Return what assembles `box` from disjoint pieces whose boxes are `held`.

    It gives a view where one piece holds all of the box, and zeros where no piece reaches.
    """
    inner = held[0]
    axis = _find_joined_axis(box, held)
    if axis is not None:  # laid out as `_Assemble` does it, whatever the layout of the pieces
        return lambda tensors: torch.cat(list(tensors), axis).contiguous()
    if len(held) > 1 or intersect(inner, box) != box:
        return _prepare(box, held, add=False)
    if inner == box:
        return lambda tensors: tensors[0]
    where = slices(relative(box, inner))
    return lambda tensors: tensors[0][where]


def _find_joined_axis(box: Box, held: Sequence[Box]) -> int | None:
    """Return the axis along which several pieces, one behind the other, make up the box; None where they do not."""
    axes = {axis for piece in held for axis, interval in enumerate(piece) if interval != box[axis]}
    if len(held) < 2 or len(axes) != 1:
        return None
    (axis,) = axes
    edges = [box[axis][0], *(stop for _, stop in (piece[axis] for piece in held))]
    starts = [piece[axis][0] for piece in held]
    return axis if edges[:-1] == starts and edges[-1] == box[axis][1] else None


def prepare_sum(box: Box, held: Sequence[Box]) -> Assembly:
    """Return what adds up partial results of `box`; a piece that covers a part of it adds to that part only."""
    return _prepare(box, held, add=True) if any(piece != box for piece in held) else _add_up


def _add_up(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


class _Parts:
    """Where the parts of a box are in it and in the pieces. covered: whether every point of the box is in a piece."""

    def __init__(self, box: Box, held: Sequence[Box], *, add: bool) -> None:
        common = [intersect(piece, box) for piece in held]
        assert None not in common
        parts = [(one, piece) for one, piece in zip(common, held, strict=True) if one is not None]
        self.add, self.shape = add, sizes(box)
        self.covered = sum(volume(one) for one, _ in parts) == volume(box)
        self.parts = [
            (slices(relative(one, box)), slices(relative(one, piece)), sizes(piece), one == piece)
            for one, piece in parts
        ]


def _prepare(box: Box, held: Sequence[Box], *, add: bool) -> Assembly:
    parts = _Parts(box, held, add=add)
    return lambda tensors: _Assemble.apply(parts, *tensors)  # type: ignore[no-untyped-call]


class _Assemble(torch.autograd.Function):
    """One autograd node for all pieces; with slice assignment backward would copy the whole gradient for each."""

    @staticmethod
    def forward(ctx: Any, parts: _Parts, *tensors: Tensor) -> Tensor:
        ctx.parts = parts.parts
        shape = parts.shape
        out = tensors[0].new_empty(shape) if parts.covered and not parts.add else tensors[0].new_zeros(shape)
        for tensor, (into, out_of, _, _) in zip(tensors, parts.parts, strict=True):
            if parts.add:
                out[into] += tensor[out_of]
            else:
                out[into] = tensor[out_of]
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        return (None, *(_part_gradient(gradient, *part) for part in ctx.parts))


def _part_gradient(gradient: Tensor, into: Any, out_of: Any, shape: tuple[int, ...], whole: bool) -> Tensor:
    if whole:
        return gradient[into]
    out = gradient.new_zeros(shape)
    out[out_of] = gradient[into]
    return out
