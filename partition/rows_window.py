"""Rows of operators that slide a window: convolution, pooling, local filters."""

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from .row import dims, row
from .signature import Call, Label, Labels, Signature, Site, Sliding


def _per_dim(value: int | Sequence[int], rank: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def _padded(call: Call, argument: str, first: int, windows: Sequence[tuple[int, int, int]], fill: float) -> Tensor:
    """The local operand with the padding that this box's windows (stride, padding, extent) reach beyond the edges."""
    pads: list[int] = []
    for d, (stride, padding, extent) in enumerate(windows, start=first):
        if not call.narrowed(argument, d):
            pads = [padding, padding, *pads]
            continue
        start, stop = call.output_interval(d)
        low, high = call.interval(argument, d)
        want_low, want_high = start * stride - padding, (stop - 1) * stride - padding + extent
        # An uncut loop may read beyond its last window: the edge that the stride leaves over.
        pads = [low - want_low, max(0, want_high - high), *pads]
    return F.pad(call[argument], pads, value=fill) if any(pads) else call[argument]


def _convolution_windows(call_or_site: Call | Site, rank: int) -> list[tuple[int, int, int]] | None:
    kernel = call_or_site.shape("weight")[2:]
    dilation = _per_dim(call_or_site["dilation"], rank)
    padding = call_or_site["padding"]
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if padding == "valid":
        padding = 0
    elif padding == "same":
        if any(extent % 2 == 0 for extent in extents):
            return None
        padding = [extent // 2 for extent in extents]
    return list(zip(_per_dim(call_or_site["stride"], rank), _per_dim(padding, rank), extents, strict=True))


def _convolution(call: Call) -> Tensor:
    rank = len(call.shape("weight")) - 2
    windows = _convolution_windows(call, rank)
    if windows is None or not call.cut_along(range(2, 2 + rank)):
        return call.plain()
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    x = _padded(call, "input", 2, windows, 0.0)
    stride, dilation = call["stride"], call["dilation"]
    return convolve(x, call["weight"], call["bias"], stride, 0, dilation, call["groups"])


@row("aten.conv1d", "aten.conv2d", "aten.conv3d", local=_convolution)
def convolution(site: Site) -> Signature | None:
    """y[b, o, p..] = sum_{c, q..} x[b, c, p * stride - padding + q * dilation] W[o, c, q..] + bias[o]"""
    shape = site.shape("weight")
    rank = len(shape) - 2
    windows = _convolution_windows(site, rank)
    if windows is None or len(site.shape("input")) != rank + 2 or any(pad >= extent for _, pad, extent in windows):
        return None
    space = dims(rank, "p")
    grouped = site["groups"] != 1
    slide = [Sliding(p, s, -pad, e) for p, (s, pad, e) in zip(space, windows, strict=True)]
    whole: list[Label] = [None] * rank
    operands: dict[str, Labels] = {
        "input": ["b", None if grouped else "c", *slide],
        "weight": [None, None, *whole] if grouped else ["o", "c", *whole],
    }
    if site["bias"] is not None:
        operands["bias"] = [None if grouped else "o"]
    work = 2.0 * math.prod(shape[2:]) * (shape[1] if grouped else 1)
    return Signature(
        operands,
        ["b", "o", *space],
        summed=frozenset() if grouped else frozenset({"c"}),
        fixed=frozenset({"o"} if grouped else ()),
        once=frozenset({"bias"}),
        work=work,
    )


def _pool_windows(call_or_site: Call | Site, rank: int) -> list[tuple[int, int, int]]:
    kernel = _per_dim(call_or_site["kernel_size"], rank)
    stride = _per_dim(call_or_site["stride"] or kernel, rank)
    dilation = _per_dim(call_or_site["dilation"] or 1, rank)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    return list(zip(stride, _per_dim(call_or_site["padding"], rank), extents, strict=True))


def _pool(call: Call) -> Tensor:
    rank, full = 2, len(call.shape())
    if not call.cut_along(range(full - rank, full)):
        return call.plain()
    edge = -math.inf if "max_pool" in call.op.target else 0.0
    x = _padded(call, "self", full - rank, _pool_windows(call, rank), edge)
    return call.plain(self=x, padding=[0] * rank)


@row("aten.max_pool2d", "aten.avg_pool2d", local=_pool)
def pool(site: Site) -> Signature | None:
    """y[.., p..] = max or mean over a window of x[.., p * stride - padding + q..]"""
    rank = 2
    windows = _pool_windows(site, rank)
    lead, space = dims(len(site.output.shape) - rank), dims(rank, "p")
    uneven = site["ceil_mode"] or (site["count_include_pad"] is False and any(pad for _, pad, _ in windows))
    slide = [Sliding(p, s, -pad, e) for p, (s, pad, e) in zip(space, windows, strict=True)]
    fixed = frozenset(space) if uneven else frozenset()
    return Signature(
        {"self": [*lead, *slide]}, [*lead, *space], fixed=fixed, work=float(math.prod(w[2] for w in windows))
    )


@row("cutset.local2d")
def local2d(site: Site) -> Signature | None:
    """y[b, o, r, s] = sum_{c, i, j} x[b, c, r * stride + i, s * stride + j] W[r, s, o, c, i, j] + bias[o, r, s]"""
    stride, (*_, high, wide) = site["stride"], site.shape("weight")
    operands: dict[str, Labels] = {
        "x": ["b", "c", Sliding("r", stride, 0, high), Sliding("s", stride, 0, wide)],
        "weight": ["r", "s", "o", "c", None, None],
    }
    if site["bias"] is not None:
        operands["bias"] = ["o", "r", "s"]
    return Signature(
        operands, ["b", "o", "r", "s"], summed=frozenset({"c"}), once=frozenset({"bias"}), work=2.0 * high * wide
    )
