"""Assembles a box of a tensor from pieces that hold parts of it; backward divides its gradient among them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...partition.ir.box import Box, intersect, relative, sizes, slices, volume


def gather(box: Box, held: Sequence[tuple[Box, Tensor]]) -> Tensor:
    """Assemble `box` from disjoint pieces: a view where one piece holds all of it, zeros where no piece reaches."""
    inner, tensor = held[0]
    if len(held) == 1 and intersect(inner, box) == box:
        return tensor if inner == box else tensor[slices(relative(box, inner))]
    return _assemble(box, held, add=False)


def add_up(box: Box, held: Sequence[tuple[Box, Tensor]]) -> Tensor:
    """Add up partial results of `box`; a piece that covers a part of it adds to that part only."""
    if any(piece != box for piece, _ in held):
        return _assemble(box, held, add=True)
    total = held[0][1]
    for _, tensor in held[1:]:
        total = total + tensor
    return total


def _assemble(box: Box, held: Sequence[tuple[Box, Tensor]], *, add: bool) -> Tensor:
    boxes, tensors = [piece for piece, _ in held], [tensor for _, tensor in held]
    result: Tensor = _Assemble.apply(box, boxes, add, *tensors)  # type: ignore[no-untyped-call]
    return result


class _Assemble(torch.autograd.Function):
    """One autograd node for all pieces; with slice assignment backward would copy the whole gradient for each."""

    @staticmethod
    def forward(ctx: Any, box: Box, pieces: list[Box], add: bool, *tensors: Tensor) -> Tensor:
        held = [intersect(piece, box) for piece in pieces]
        covered = sum(volume(common) for common in held if common is not None) == volume(box)
        out = tensors[0].new_empty(sizes(box)) if covered and not add else tensors[0].new_zeros(sizes(box))
        ctx.parts = []
        for piece, common, tensor in zip(pieces, held, tensors, strict=True):
            assert common is not None
            into, out_of = slices(relative(common, box)), slices(relative(common, piece))
            if add:
                out[into] += tensor[out_of]
            else:
                out[into] = tensor[out_of]
            ctx.parts.append((into, out_of, tensor.shape, common == piece))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        return (None, None, None, *(_part_gradient(gradient, *part) for part in ctx.parts))


def _part_gradient(gradient: Tensor, into: Any, out_of: Any, shape: torch.Size, whole: bool) -> Tensor:
    if whole:
        return gradient[into]
    out = gradient.new_zeros(shape)
    out[out_of] = gradient[into]
    return out
