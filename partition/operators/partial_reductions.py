"""What the parts of a cut dimension tell of themselves, and what follows for the whole: moments, sums of exponentials,
extremes. All are exact, and differentiable; parts that tell zeros only are none.

Tensors here are [parts, width, *rest]; a box's own part is [1, width, *rest].
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

MOMENTS, EXPONENTIALS, EXTREMES, PLACES = 3, 2, 2, 2  # widths


# Count, mean and squares --------------------------------------------------------------------------------------------


def moments_of(x: Tensor, over: Sequence[int]) -> Tensor:
    """Count, mean and squared distances from it, over dimensions."""
    result: Tensor = _Moments.apply(x, tuple(over))  # type: ignore[no-untyped-call]
    return result


class _Moments(torch.autograd.Function):
    """Keeps only x for backward; the plain expression would keep x - mean and its square too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, over: tuple[int, ...]) -> Tensor:
        variance, mean = torch.var_mean(x, over, correction=0, keepdim=True)
        count = x.numel() // max(1, mean.numel())
        ctx.save_for_backward(x, mean)
        ctx.count = count
        kept = [size for d, size in enumerate(x.shape) if d not in over]
        return torch.stack([t.reshape(kept) for t in (torch.full_like(mean, count), mean, variance * count)])[None]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, mean = ctx.saved_tensors
        _, of_mean, of_squares = (g.reshape(mean.shape) for g in gradients[0][0])
        return of_mean / ctx.count + 2 * of_squares * (x - mean), None


def moments_joined(parts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and squared distances of all parts (Chan, Golub and LeVeque 1979): of the rest's shape."""
    counts, means, squares = parts.unbind(1)
    count = counts.sum(0).clamp_min(1)
    mean = (counts * means).sum(0) / count
    return count, mean, squares.sum(0) + (counts * (means - mean).square()).sum(0)


# The largest, and exponentials relative to it -----------------------------------------------------------------------


def exponentials_of(x: Tensor, over: Sequence[int]) -> Tensor:
    """Sum of exp(x - largest), and the largest, over dimensions."""
    largest = _finite(x.detach().amax(tuple(over), keepdim=True))
    total = (x - largest).exp().sum(tuple(over))
    return torch.stack([total, largest.reshape(total.shape)])[None]


def exponentials_joined(parts: Tensor) -> Tensor:
    """log of the sum of exp(x) over all parts, of the rest's shape."""
    totals, largest = parts[:, 0], parts[:, 1].detach()
    told = totals.detach() != 0  # NaN tells too
    top = _finite(torch.where(told, largest, -torch.inf).amax(0))
    factors = torch.where(told, largest - top, -torch.inf).exp()
    return (totals * factors).sum(0).log() + top


def _finite(largest: Tensor) -> Tensor:
    """A number to subtract: where the largest is infinite, x - largest would be NaN."""
    return torch.where(largest.isinf(), 0.0, largest)


# The largest --------------------------------------------------------------------------------------------------------


def extremes_of(x: Tensor, over: Sequence[int]) -> Tensor:
    """How often the largest value occurs, and the value, over dimensions."""
    largest = x.amax(tuple(over))
    beside = largest.detach().reshape([1 if d in over else size for d, size in enumerate(x.shape)])
    count = ((x.detach() == beside) | x.detach().isnan()).sum(tuple(over))
    return torch.stack([count.to(x.dtype), largest])[None]


def extremes_joined(parts: Tensor) -> Tensor:
    """The largest value of all parts; its gradient is shared by all places where it occurs."""
    counts, values = parts.detach().unbind(1)
    top = torch.where(counts != 0, values, -torch.inf).amax(0)
    holds = (counts != 0) & ((values == top) | (values.isnan() & top.isnan()))
    shares = torch.where(holds, counts, 0.0)
    result: Tensor = _Chosen.apply(parts[:, 1], top, shares / shares.sum(0))  # type: ignore[no-untyped-call]
    return result


def places_of(x: Tensor, dim: int, indices: Tensor) -> Tensor:
    """1 + the index of the first largest value along a dimension, and the value. indices: of x in the whole."""
    largest, at = x.max(dim)
    return torch.stack([1 + indices[at].to(x.dtype), largest])[None]


def places_joined(parts: Tensor) -> tuple[Tensor, Tensor]:
    """The largest value of all parts, whose gradient goes to the first place that has it, and the index of that."""
    places, values = parts.detach().unbind(1)
    top = torch.where(places != 0, values, -torch.inf).amax(0)
    holds = (places != 0) & ((values == top) | (values.isnan() & top.isnan()))
    first = torch.where(holds, places, torch.inf).amin(0)
    chosen = (holds & (places == first)).to(parts.dtype)
    result: Tensor = _Chosen.apply(parts[:, 1], top, chosen)  # type: ignore[no-untyped-call]
    return result, (first - 1).to(torch.int64)


class _Chosen(torch.autograd.Function):
    """A value that is some of the parts', and the share of its gradient that each of them has."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        ctx.save_for_backward(shares)
        return chosen.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (shares,) = ctx.saved_tensors
        return torch.where(shares != 0, gradients[0] * shares, 0.0), None, None
