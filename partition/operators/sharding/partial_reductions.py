"""Summaries of the parts of a cut dimension, and what follows from them for the whole: moments, sums of exponentials,
extremes. All are exact and differentiable; a summary of zeros is that of a part without a value.

Summaries are [parts, width, *rest], where `rest` are the dimensions that are not reduced; that of one box has one part.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

MOMENTS, EXPONENTIALS, EXTREMES, FIRST_EXTREMES = 3, 2, 2, 2  # widths of the summaries


# Count, mean and squares --------------------------------------------------------------------------------------------


def compute_moments(x: Tensor, over: Sequence[int]) -> Tensor:
    """Return the summary of count, mean, and sum of squared distances from the mean: [1, 3, *rest].

    x: any shape; over: the dimensions that are reduced.
    """
    result: Tensor = _Moments.apply(x, tuple(over))  # type: ignore[no-untyped-call]
    return result


class _Moments(torch.autograd.Function):
    """The moments with a backward that keeps only x; the plain expression would keep x - mean and its square too."""

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


def combine_moments(parts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return count, mean and squared distances of all parts, each [*rest] (Chan, Golub and LeVeque 1979)."""
    counts, means, squares = parts.unbind(1)
    count = counts.sum(0).clamp_min(1)
    mean = (counts * means).sum(0) / count
    return count, mean, squares.sum(0) + (counts * (means - mean).square()).sum(0)


# The largest, and exponentials relative to it -----------------------------------------------------------------------


def compute_exponentials(x: Tensor, over: Sequence[int]) -> Tensor:
    """Return the summary of the sum of exp(x - largest) and the largest value: [1, 2, *rest]."""
    largest = _finite(x.detach().amax(tuple(over), keepdim=True))
    total = (x - largest).exp().sum(tuple(over))
    return torch.stack([total, largest.reshape(total.shape)])[None]


def combine_exponentials(parts: Tensor) -> Tensor:
    """Return the log of the sum of exp(x) over all parts, [*rest]."""
    totals, largest = parts[:, 0], parts[:, 1].detach()
    has_value = totals.detach() != 0  # NaN is a value
    top = _finite(torch.where(has_value, largest, -torch.inf).amax(0))
    factors = torch.where(has_value, largest - top, -torch.inf).exp()
    return (totals * factors).sum(0).log() + top


def _finite(largest: Tensor) -> Tensor:
    """Return what to subtract: 0 where the largest is infinite, since x - largest would be NaN."""
    return torch.where(largest.isinf(), 0.0, largest)


# The largest --------------------------------------------------------------------------------------------------------


def compute_extremes(x: Tensor, over: Sequence[int]) -> Tensor:
    """Return the summary of how often the largest value occurs, and the value: [1, 2, *rest]."""
    largest = x.amax(tuple(over))
    beside = largest.detach().reshape([1 if d in over else size for d, size in enumerate(x.shape)])
    count = ((x.detach() == beside) | x.detach().isnan()).sum(tuple(over))
    return torch.stack([count.to(x.dtype), largest])[None]


def combine_extremes(parts: Tensor) -> Tensor:
    """Return the largest value of all parts, [*rest]; all places where it occurs share its gradient."""
    counts, values = parts.detach().unbind(1)
    top = torch.where(counts != 0, values, -torch.inf).amax(0)
    holds = (counts != 0) & ((values == top) | (values.isnan() & top.isnan()))
    shares = torch.where(holds, counts, 0.0)
    result: Tensor = _ShareGradient.apply(parts[:, 1], top, shares / shares.sum(0))  # type: ignore[no-untyped-call]
    return result


def compute_first_extremes(x: Tensor, dim: int, indices: Tensor) -> Tensor:
    """Return the summary of 1 + the index of the first largest value along a dimension, and the value: [1, 2, *rest].

    indices: those of x in the whole dimension.
    """
    largest, at = x.max(dim)
    return torch.stack([1 + indices[at].to(x.dtype), largest])[None]


def combine_first_extremes(parts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest value of all parts, whose gradient goes to the first place that has it, and that index."""
    places, values = parts.detach().unbind(1)
    top = torch.where(places != 0, values, -torch.inf).amax(0)
    holds = (places != 0) & ((values == top) | (values.isnan() & top.isnan()))
    first = torch.where(holds, places, torch.inf).amin(0)
    chosen = (holds & (places == first)).to(parts.dtype)
    result: Tensor = _ShareGradient.apply(parts[:, 1], top, chosen)  # type: ignore[no-untyped-call]
    return result, (first - 1).to(torch.int64)


class _ShareGradient(torch.autograd.Function):
    """A value that some parts have, whose gradient is divided among the parts by `shares`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        ctx.save_for_backward(shares)
        return chosen.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (shares,) = ctx.saved_tensors
        return torch.where(shares != 0, gradients[0] * shares, 0.0), None, None
