"""Sharding rules of pooling: maximum or mean over windows, and adaptive means, whose windows follow from the sizes."""

import math

import torch
from torch import Tensor

from ..sharding.cost_class import POOLING
from ..sharding.sharding_rule import make_labels, sharding_rule
from ..sharding.signature import Call, Label, Signature, Site
from ..sharding.windows import Filter, apply_linear_map, fit_window_to_matrix, pad_operand, per_dim


def _rank(target: str) -> int:
    """Return how many dimensions a window has: 2 for "aten.max_pool2d.default"."""
    return int(target.split(".")[1][-2])


def _windows(call_or_site: Call | Site, rank: int) -> list[Filter]:
    kernel = per_dim(call_or_site["kernel_size"], rank)
    strides = per_dim(call_or_site["stride"] or kernel, rank)
    dilation = per_dim(call_or_site["dilation"] or 1, rank)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    paddings = per_dim(call_or_site["padding"], rank)
    return [Filter(*numbers) for numbers in zip(strides, paddings, extents, strict=True)]


def _pool(call: Call) -> Tensor:
    rank, full = _rank(call.op.target), len(call.shape())
    space = range(full - rank, full)
    if not call.is_cut_along(space):
        return call.run_torch()
    windows = _windows(call, rank)
    # The padding makes every window whole.
    whole = {"padding": [0] * rank, "ceil_mode": False}
    if "max_pool" in call.op.target:
        return call.run_torch(self=pad_operand(call, "self", windows, -math.inf), **whole)
    y = call.run_torch(self=pad_operand(call, "self", windows, 0.0), **whole)
    if call["divisor_override"] is not None:
        return y
    for d, window in zip(space, windows, strict=True):
        share = window.extent / _divisors(call, d, window).to(y.dtype)
        y = y * share.view([-1 if i == d else 1 for i in range(full)])
    return y


def _divisors(call: Call, dim: int, window: Filter) -> Tensor:
    """Return by how many entries along one dimension each mean divides; padding counts if the operator says so."""
    size, start = call.shape("self")[dim], call.indices(dim) * window.stride - window.padding
    stop = torch.clamp(start + window.extent, max=size + window.padding)
    if call["count_include_pad"]:
        return stop - start
    return stop.clamp(max=size) - start.clamp(min=0)


def _enter_pools(rank: int) -> None:
    @sharding_rule(f"aten.max_pool{rank}d", f"aten.avg_pool{rank}d", cost=POOLING, local=_pool)
    def pool(site: Site) -> Signature | None:
        """y[.., p..] = max or mean over a window of x[.., p * stride - padding + q..]"""
        lead, space = make_labels(len(site.output.shape) - rank), make_labels(rank, "p")
        read = [window.label(p) for p, window in zip(space, _windows(site, rank), strict=True)]
        work = float(math.prod(per_dim(site["kernel_size"], rank)))
        return Signature({"self": [*lead, *read]}, [*lead, *space], work=work)


def _bins(size: int, count: int) -> Tensor:
    """Return the mean over each of `count` bins of `size` entries, as a matrix [count, size]; uneven bins overlap."""
    bins = torch.zeros(count, size, dtype=torch.float64)
    for p in range(count):
        start, stop = p * size // count, -(-(p + 1) * size // count)
        bins[p, start:stop] = 1.0 / (stop - start)
    return bins


def _adaptive(call: Call) -> Tensor:
    x: Tensor = call["self"]
    whole, rank = call.shape("self"), _rank(call.op.target)
    space = range(x.dim() - rank, x.dim())
    if all(x.shape[d] == whole[d] for d in space) and not call.is_cut_along(space):
        return call.run_torch()
    for d in space:
        if call.shape()[d] == 1:
            x = x.sum(d, keepdim=True) / whole[d]
        elif call.shape()[d] != whole[d]:
            x = apply_linear_map(call, "self", x, d, _bins(whole[d], call.shape()[d]).to(x.dtype))
    return x


def _enter_adaptive_pools(rank: int) -> None:
    @sharding_rule(f"aten.adaptive_avg_pool{rank}d", cost=POOLING, local=_adaptive)
    def adaptive_pool(site: Site) -> Signature | None:
        """y[.., p..] = mean over bin p of x; where there is one bin, its sum may be cut."""
        sizes, counts = site.shape("self")[-rank:], site.output.shape[-rank:]
        lead, space = make_labels(len(site.output.shape) - rank), make_labels(rank, "p")
        read: list[Label] = [
            p if count == 1 else fit_window_to_matrix(p, _bins(size, count))
            for p, size, count in zip(space, sizes, counts, strict=True)
        ]
        output = [None if count == 1 else p for p, count in zip(space, counts, strict=True)]
        summed = frozenset(p for p, count in zip(space, counts, strict=True) if count == 1)
        return Signature({"self": [*lead, *read]}, [*lead, *output], summed=summed)


for _rank_of_space in (1, 2, 3):
    _enter_pools(_rank_of_space)
    _enter_adaptive_pools(_rank_of_space)
