"""Rows of pooling: windows with a maximum or a mean, and adaptive ones, whose windows follow from the sizes."""

import math

import torch
from torch import Tensor

from .sharding_rule import dims, row
from .signature import Call, Label, Signature, Site
from .windows import Window, fitted_to, mapped, padded, per_dim


def _rank(target: str) -> int:
    """2 of "aten.max_pool2d.default": how many dimensions a window has."""
    return int(target.split(".")[1][-2])


def _windows(call_or_site: Call | Site, rank: int) -> list[Window]:
    kernel = per_dim(call_or_site["kernel_size"], rank)
    strides = per_dim(call_or_site["stride"] or kernel, rank)
    dilation = per_dim(call_or_site["dilation"] or 1, rank)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    paddings = per_dim(call_or_site["padding"], rank)
    return [Window(*numbers) for numbers in zip(strides, paddings, extents, strict=True)]


def _pool(call: Call) -> Tensor:
    rank, full = _rank(call.op.target), len(call.shape())
    space = range(full - rank, full)
    if not call.cut_along(space):
        return call.plain()
    windows = _windows(call, rank)
    # The padding makes every window whole.
    whole = {"padding": [0] * rank, "ceil_mode": False}
    if "max_pool" in call.op.target:
        return call.plain(self=padded(call, "self", windows, -math.inf), **whole)
    y = call.plain(self=padded(call, "self", windows, 0.0), **whole)
    if call["divisor_override"] is not None:
        return y
    for d, window in zip(space, windows, strict=True):
        share = window.extent / _counted(call, d, window).to(y.dtype)
        y = y * share.view([-1 if i == d else 1 for i in range(full)])
    return y


def _counted(call: Call, dim: int, window: Window) -> Tensor:
    """By how many entries along one dimension a mean divides: those at the edge count padding if told so."""
    size, start = call.shape("self")[dim], call.indices(dim) * window.stride - window.padding
    stop = torch.clamp(start + window.extent, max=size + window.padding)
    if call["count_include_pad"]:
        return stop - start
    return stop.clamp(max=size) - start.clamp(min=0)


def _enter_pools(rank: int) -> None:
    @row(f"aten.max_pool{rank}d", f"aten.avg_pool{rank}d", local=_pool)
    def pool(site: Site) -> Signature | None:
        """y[.., p..] = max or mean over a window of x[.., p * stride - padding + q..]"""
        lead, space = dims(len(site.output.shape) - rank), dims(rank, "p")
        read = [window.label(p) for p, window in zip(space, _windows(site, rank), strict=True)]
        work = float(math.prod(per_dim(site["kernel_size"], rank)))
        return Signature({"self": [*lead, *read]}, [*lead, *space], work=work)


def _bins(size: int, count: int) -> Tensor:
    """The mean over each of `count` bins of `size` entries, as a matrix; uneven bins overlap."""
    bins = torch.zeros(count, size, dtype=torch.float64)
    for p in range(count):
        start, stop = p * size // count, -(-(p + 1) * size // count)
        bins[p, start:stop] = 1.0 / (stop - start)
    return bins


def _adaptive(call: Call) -> Tensor:
    x: Tensor = call["self"]
    whole, rank = call.shape("self"), _rank(call.op.target)
    space = range(x.dim() - rank, x.dim())
    if all(x.shape[d] == whole[d] for d in space) and not call.cut_along(space):
        return call.plain()
    for d in space:
        if call.shape()[d] == 1:
            x = x.sum(d, keepdim=True) / whole[d]
        elif call.shape()[d] != whole[d]:
            x = mapped(call, "self", x, d, _bins(whole[d], call.shape()[d]).to(x.dtype))
    return x


def _enter_adaptive_pools(rank: int) -> None:
    @row(f"aten.adaptive_avg_pool{rank}d", local=_adaptive)
    def adaptive_pool(site: Site) -> Signature | None:
        """y[.., p..] = mean over bin p of x; where there is one bin, its sum may be cut."""
        sizes, counts = site.shape("self")[-rank:], site.output.shape[-rank:]
        lead, space = dims(len(site.output.shape) - rank), dims(rank, "p")
        read: list[Label] = [
            p if count == 1 else fitted_to(p, _bins(size, count))
            for p, size, count in zip(space, sizes, counts, strict=True)
        ]
        output = [None if count == 1 else p for p, count in zip(space, counts, strict=True)]
        summed = frozenset(p for p, count in zip(space, counts, strict=True) if count == 1)
        return Signature({"self": [*lead, *read]}, [*lead, *output], summed=summed)


for _rank_of_space in (1, 2, 3):
    _enter_pools(_rank_of_space)
    _enter_adaptive_pools(_rank_of_space)
