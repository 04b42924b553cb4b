"""Sharding rules of operators that slide a filter: convolutions, transposed ones, local filters, unfold and fold."""

import math
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from ..sharding.cost_class import CONVOLUTION, COPY, LOCAL
from ..sharding.sharding_rule import sharding_rule
from ..sharding.signature import Call, Composite, Label, Labels, Signature, Site
from ..sharding.windows import (
    Filter,
    fit_window,
    operand_reach,
    output_reach,
    pad_operand,
    pad_or_crop,
    per_dim,
    pick_entries,
)


def _windows(call_or_site: Call | Site, rank: int) -> list[Filter]:
    """Return the filter along each dimension. With padding "same", an even extent pads one more at the end."""
    kernel = call_or_site.shape("weight")[2:]
    dilation = per_dim(call_or_site["dilation"], rank)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = call_or_site["padding"]
    if padding == "same":
        padding = [(extent - 1) // 2 for extent in extents]
    elif padding == "valid":
        padding = 0
    strides, paddings = per_dim(call_or_site["stride"], rank), per_dim(padding, rank)
    return [Filter(*numbers) for numbers in zip(strides, paddings, extents, strict=True)]


def _channels(outer: str, inner: str, groups: int, size: int) -> Label:
    """Return the label of a dimension of channels: groups times the channels of a group."""
    return Composite(((outer, groups), (inner, size // groups))) if groups != 1 else inner


def _bias_alone(call: Call) -> Tensor:
    """Compute a box that reads nothing but padding: the bias, if there is one."""
    rank, weight, bias = len(call.shape("weight")) - 2, call["weight"], call["bias"]
    out: Tensor = weight.new_zeros(call.local_shape)
    return out if bias is None else out + bias.view(-1, *[1] * rank)


def _convolution(call: Call) -> Tensor:
    x, weight = call["input"], call["weight"]
    if x is None:
        return _bias_alone(call)
    rank, full = weight.dim() - 2, x.dim()
    groups = x.shape[full - rank - 1] // weight.shape[1]
    if not call.is_cut_along(range(full - rank, full)):
        return call.run_torch(groups=groups)
    convolve: Callable[..., Tensor] = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    windows = _windows(call, rank)
    x = pad_operand(call, "input", windows, 0.0)
    strides = [_stride(window, x.shape[d - rank]) for d, window in enumerate(windows)]
    return convolve(x, weight, call["bias"], strides, 0, call["dilation"], groups)


def _stride(window: Filter, size: int) -> int:
    """Return the stride, but 1 for a single position, where oneDNN's bfloat16 kernels on AMX are wrong for others."""
    return 1 if size == window.extent else window.stride


@sharding_rule("aten.conv1d", "aten.conv2d", "aten.conv3d", cost=CONVOLUTION, local=_convolution)
def convolution(site: Site) -> Signature | None:
    """y[b, go, p..] = sum_{c, q..} x[b, gc, p * stride - padding + q * dilation] W[go, c, q..] + bias[go]"""
    shape, groups = site.shape("weight"), site["groups"]
    rank = len(shape) - 2
    space = [f"p{i}" for i in range(rank)]
    batch = ["b"] if len(site.shape("input")) == rank + 2 else []
    out_channels = _channels("g", "o", groups, shape[0])
    read = [window.label(p) for p, window in zip(space, _windows(site, rank), strict=True)]
    operands: dict[str, Labels] = {
        "input": [*batch, _channels("g", "c", groups, shape[1] * groups), *read],
        "weight": [out_channels, "c", *[None] * rank],
    }
    if site["bias"] is not None:
        operands["bias"] = [out_channels]
    return Signature(
        operands,
        [*batch, out_channels, *space],
        summed=frozenset({"c"}),
        once=frozenset({"bias"}),
        work=2.0 * math.prod(shape[2:]),
    )


def _transposed_windows(call_or_site: Call | Site, rank: int) -> list[Filter]:
    """Return the filters of the convolution that this one is the transpose of: its output is our operand."""
    names = ("stride", "padding", "dilation")
    strides, paddings, dilations = (per_dim(call_or_site[name], rank) for name in names)
    kernel = call_or_site.shape("weight")[2:]
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    return [Filter(*numbers) for numbers in zip(strides, paddings, extents, strict=True)]


def _transposed_convolution(call: Call) -> Tensor:
    x, weight, bias = call["input"], call["weight"], call["bias"]
    if x is None:
        return _bias_alone(call)
    rank, full = weight.dim() - 2, x.dim()
    groups = call.local_shape[full - rank - 1] // weight.shape[1]
    if not call.is_cut_along(range(full - rank, full)):
        return call.run_torch(groups=groups)
    convolve: Callable[..., Tensor] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    y = convolve(x, weight, None, call["stride"], 0, 0, groups, call["dilation"])
    for d, window in enumerate(_transposed_windows(call, rank), start=full - rank):
        if (window.stride, window.extent) == (1, 1):
            y = pick_entries(y, d, call.indices(d, "input"), call.indices(d) + window.padding, 0.0)
            continue
        (start, stop), (low, _) = output_reach(call, d), operand_reach(call, "input", d)
        first = low * window.stride - window.padding
        y = pad_or_crop(y, d, first - start, stop - first - y.shape[d], 0.0)
    return y if bias is None else y + bias.view(-1, *[1] * rank)


@sharding_rule(*(f"aten.conv_transpose{rank}d" for rank in (1, 2, 3)), cost=CONVOLUTION, local=_transposed_convolution)
def transposed_convolution(site: Site) -> Signature | None:
    """y[b, go, i * stride - padding + q * dilation] = sum_{c, q..} x[b, gc, i..] W[gc, o, q..], plus bias[go]"""
    shape, groups = site.shape("weight"), site["groups"]
    rank = len(shape) - 2
    sizes, counts = site.shape("input")[-rank:], site.output.shape[-rank:]
    space = [f"p{i}" for i in range(rank)]
    batch = ["b"] if len(site.shape("input")) == rank + 2 else []
    read: list[Label] = []
    for p, window, size, count in zip(space, _transposed_windows(site, rank), sizes, counts, strict=True):
        # Point o gets something from the operand's i where 0 <= o + padding - i * stride < extent.
        last = [(o + window.padding) // window.stride for o in range(count)]
        first = [-((window.extent - 1 - o - window.padding) // window.stride) for o in range(count)]
        first = [min(low, high) for low, high in zip(first, last, strict=True)]
        read.append(fit_window(p, size, first, last, stride=1, divisor=window.stride))
    out_channels = _channels("g", "o", groups, shape[1] * groups)
    in_channels = _channels("g", "c", groups, shape[0])
    operands: dict[str, Labels] = {"input": [*batch, in_channels, *read], "weight": [in_channels, "o", *[None] * rank]}
    if site["bias"] is not None:
        operands["bias"] = [out_channels]
    return Signature(
        operands,
        [*batch, out_channels, *space],
        summed=frozenset({"c"}),
        once=frozenset({"bias"}),
        work=2.0 * math.prod(shape[2:]) * math.prod(sizes) / math.prod(counts),
    )


@sharding_rule("aten.im2col", cost=COPY)
def unfold(site: Site) -> Signature | None:
    """y[b, c q.., l] = x[b, c, position l + q..]: the filter's view of every position; positions stay whole."""
    channels = site.shape("self")[-3]
    batch = ["b"] if len(site.shape("self")) == 4 else []
    out_channels = Composite((("c", channels), ("q", site.output.shape[-2] // channels)))
    return Signature(
        {"self": [*batch, "c", None, None]}, [*batch, out_channels, "l"], fixed=frozenset({"q", "l"}), work=0.0
    )


@sharding_rule("aten.col2im", cost=COPY)
def fold(site: Site) -> Signature | None:
    """The transpose of `unfold`: what several positions give to one pixel adds up."""
    channels = site.output.shape[-3]
    batch = ["b"] if len(site.output.shape) == 4 else []
    in_channels = Composite((("c", channels), (None, site.shape("self")[-2] // channels)))
    return Signature({"self": [*batch, in_channels, None]}, [*batch, "c", "h", "w"], fixed=frozenset({"h", "w"}))


@sharding_rule("cutset.local2d", cost=LOCAL)
def local2d(site: Site) -> Signature | None:
    """y[b, o, r, s] = sum_{c, i, j} x[b, c, r * stride + i, s * stride + j] W[r, s, o, c, i, j] + bias[o, r, s]"""
    stride, (*_, high, wide) = site["stride"], site.shape("weight")
    operands: dict[str, Labels] = {
        "x": ["b", "c", Filter(stride, 0, high).label("r"), Filter(stride, 0, wide).label("s")],
        "weight": ["r", "s", "o", "c", None, None],
    }
    if site["bias"] is not None:
        operands["bias"] = ["o", "r", "s"]
    return Signature(
        operands, ["b", "o", "r", "s"], summed=frozenset({"c"}), once=frozenset({"bias"}), work=2.0 * high * wide
    )
