"""Filters that slide over a dimension: the part of it that a box reads, padding beyond its edges, linear maps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .signature import Call, Label, Sliding

MAX_TAPS = 4  # nonzero entries of a matrix row, up to which a linear map gathers rather than multiplies


@dataclass(frozen=True)
class Filter:
    """A filter along one dimension: point p of the output reads p * stride - padding + [0, extent) of the operand."""

    stride: int
    padding: int
    extent: int

    @property
    def is_pointwise(self) -> bool:
        """Whether point p reads point p and nothing else."""
        return (self.stride, self.padding, self.extent) == (1, 0, 1)

    def label(self, loop: str) -> Label:
        """Return the label of the operand's dimension."""
        return loop if self.is_pointwise else Sliding(loop, self.stride, -self.padding, self.extent)


def per_dim(value: int | Sequence[int], rank: int) -> list[int]:
    """Return one number for each of `rank` dimensions, as torch reads an argument."""
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def pad_operand(call: Call, argument: str, windows: Sequence[Filter], fill: float) -> Tensor:
    """Return the local operand with the padding that this box's filters, over its last dimensions, need."""
    x: Tensor = call[argument]
    pads: list[int] = []
    for d, window in enumerate(windows, start=x.dim() - len(windows)):
        if (window.stride, window.extent) == (1, 1):
            x = pick_entries(x, d, call.indices(d, argument), call.indices(d) - window.padding, fill)
            pads = [0, 0, *pads]
            continue
        (start, stop), (low, high) = output_reach(call, d), operand_reach(call, argument, d)
        want_low = start * window.stride - window.padding
        want_high = (stop - 1) * window.stride - window.padding + window.extent
        # An uncut loop may read beyond its last window: the edge that the stride leaves over.
        pads = [low - want_low, max(0, want_high - high), *pads]
    return F.pad(x, pads, value=fill) if any(pads) else x


def pad_or_crop(x: Tensor, dim: int, before: int, after: int, fill: float) -> Tensor:
    """Return `x` with `before` and `after` entries added along one dimension; negative numbers crop it."""
    if before > 0 or after > 0:
        x = F.pad(x, [*[0, 0] * (x.dim() - 1 - dim), max(0, before), max(0, after)], value=fill)
    crop = max(0, -before)
    return x.narrow(dim, crop, x.shape[dim] - crop - max(0, -after)) if before < 0 or after < 0 else x


def pick_entries(x: Tensor, dim: int, held: Tensor, wanted: Tensor, fill: float) -> Tensor:
    """Return the entries `wanted` along a dimension of which `x` has those at `held`; missing ones are `fill`."""
    if _one_run(held) and _one_run(wanted):
        return pad_or_crop(x, dim, int(held[0] - wanted[0]), int(wanted[-1] - held[-1]), fill)
    at = torch.searchsorted(held, wanted).clamp(max=len(held) - 1)
    missing = (held[at] != wanted).view([-1 if d == dim else 1 for d in range(x.dim())])
    return x.index_select(dim, at).masked_fill(missing, fill)


def _one_run(indices: Tensor) -> bool:
    return int(indices[-1] - indices[0]) == len(indices) - 1 and bool((indices.diff() == 1).all())


def output_reach(call: Call, dim: int) -> tuple[int, int]:
    """Return what a box computes of a dimension that is one axis, or that it computes whole."""
    full = call.shape()[dim]
    return (0, full) if call.local_shape[dim] == full else call.output_interval(dim)


def operand_reach(call: Call, argument: str, dim: int) -> tuple[int, int]:
    """Return what a box reads of a dimension that is one axis, or that it reads whole."""
    return call.operand_interval(argument, dim) if call.is_narrowed(argument, dim) else (0, call.shape(argument)[dim])


def fit_window(loop: str, size: int, first: Sequence[int], last: Sequence[int], *, stride: int, divisor: int) -> Label:
    """Return the label of a dimension of `size` of which point p of the loop reads [first[p], last[p]].

    It is the narrowest window that moves by stride / divisor a point.
    """
    points = range(len(first))
    if list(first) == list(last) == list(range(size)) and size == len(points):
        return loop
    common = math.gcd(stride, divisor)
    stride, divisor = stride // common, divisor // common
    reach = max(last[p] * divisor - p * stride for p in points)
    offset = min(reach, *((first[p] + 1) * divisor - 1 - p * stride for p in points))
    return Sliding(loop, stride, offset, reach - offset + 1, divisor=divisor)


def fit_window_to_matrix(loop: str, matrix: Tensor) -> Label:
    """Return the narrowest window of a loop of which point p reads the columns where row p of `matrix` is nonzero."""
    count, size = matrix.shape
    used = matrix != 0
    first = used.to(torch.uint8).argmax(1)
    last = size - 1 - used.flip(1).to(torch.uint8).argmax(1)
    return fit_window(loop, size, first.tolist(), last.tolist(), stride=size, divisor=count)


def apply_linear_map(call: Call, argument: str, x: Tensor, dim: int, matrix: Tensor) -> Tensor:
    """Return the rows that this box computes of `matrix` times dimension `dim` of `x`, the part that the box reads."""
    local = matrix[call.indices(dim)][:, call.indices(dim, argument)]
    taps = int((local != 0).sum(1).max())
    if taps > MAX_TAPS:
        product: Tensor = torch.tensordot(x, local, dims=([dim], [1]))
        return product.movedim(-1, dim)
    at = local.abs().topk(taps, dim=1).indices
    weights = local.gather(1, at)
    shape = [-1 if d == dim else 1 for d in range(x.dim())]
    parts = [x.index_select(dim, at[:, t]) * weights[:, t].view(shape) for t in range(taps)]
    return torch.stack(parts).sum(0) if taps > 1 else parts[0]
