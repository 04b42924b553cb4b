"""Sharding rules of operators that change the size of an image: interpolation, padding, pixel shuffles, grids."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...ir.arguments import call_operator
from ..sharding.cost_class import COPY, FUNCTION
from ..sharding.sharding_rule import make_labels, sharding_rule
from ..sharding.signature import Call, Composite, Label, Labels, Signature, Site
from ..sharding.windows import (
    Filter,
    apply_linear_map,
    fit_window,
    fit_window_to_matrix,
    operand_reach,
    output_reach,
    pick_entries,
)

# Interpolation: a linear map along each dimension -----------------------------------------------------------------

BY_RANK = {
    1: ("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_linear1d"),
    2: ("upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_bilinear2d", "upsample_bicubic2d"),
    3: ("upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_trilinear3d"),
}
MAX_ENTRIES = 1 << 24  # of such a matrix
SCALES = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}


def _weights(name: str, arguments: Any, dim: int, size: int, count: int, dtype: torch.dtype) -> Tensor:
    """Return the matrix [count, size] of interpolation along one dimension: torch's interpolation of the identity."""
    rank = next(rank for rank, names in BY_RANK.items() if name in names)
    factors = arguments["scale_factors"]
    along = [size, *[1] * (rank - 1)]
    interpolation: dict[str, Any] = {
        "self": torch.eye(size, dtype=dtype).reshape(1, size, *along),
        "output_size": [count, *[1] * (rank - 1)],
        "align_corners": arguments["align_corners"],
        **dict.fromkeys(SCALES[rank]),
        SCALES[rank][0]: factors[dim] if factors is not None else None,
    }
    resized: Tensor = call_operator(f"aten.{name}.default", interpolation)
    return resized.reshape(size, count).t()


def _interpolate(call: Call) -> Tensor:
    x: Tensor = call["input"]
    name, full = call.op.target.split(".")[1], x.dim()
    space = range(2, full)
    if not call.is_cut_along(space):
        return call.run_torch()
    for d in space:
        matrix = _weights(name, call, d - 2, call.shape("input")[d], call.shape()[d], x.dtype)
        x = apply_linear_map(call, "input", x, d, matrix)
    return x


def _enter_interpolation(rank: int, name: str) -> None:
    @sharding_rule(f"aten.{name}", cost=FUNCTION, local=_interpolate)
    def interpolation(site: Site) -> Signature | None:
        """y[b, c, p..] = sum_{i..} M[p, i].. x[b, c, i..], M with a few entries a row."""
        if site["input"] is None:
            return None
        sizes, counts = site.shape("input")[2:], site.output.shape[2:]
        if any(size * count > MAX_ENTRIES for size, count in zip(sizes, counts, strict=True)):
            return None
        dtype = getattr(torch, site["input"].dtype)
        space = make_labels(rank, "p")
        read = [
            fit_window_to_matrix(p, _weights(name, site, d, size, count, dtype))
            for d, (p, size, count) in enumerate(zip(space, sizes, counts, strict=True))
        ]
        return Signature({"input": ["b", "c", *read]}, ["b", "c", *space], work=4.0)


for _rank, _names in BY_RANK.items():
    for _name in _names:
        _enter_interpolation(_rank, _name)

# Padding ----------------------------------------------------------------------------------------------------------


def _sources(mode: str, size: int, low: int, high: int) -> Tensor:
    """Return the index that each point of a padded dimension copies; where it copies none, one beyond the edge."""
    if mode == "constant":
        return torch.arange(-low, size + high)
    # The index itself, padded: torch pads the last dimension of a batch.
    padded = F.pad(torch.arange(size, dtype=torch.float64).view(1, 1, size), (low, high), mode=mode)
    return padded.view(-1).to(torch.int64)


def _paddings(call_or_site: Call | Site, rank: int) -> list[tuple[int, int]]:
    """Return what is added before and after each dimension, the first dimension first."""
    pad = call_or_site["pad"]
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    return [(0, 0)] * (rank - len(pairs)) + pairs[::-1]


def _pad(call: Call) -> Tensor:
    x: Tensor | None = call["self"]
    mode = call["mode"]
    if x is None:
        return torch.full(call.local_shape, call["value"] or 0.0, dtype=call.dtype)
    whole = call.shape("self")
    grown = [(d, pair) for d, pair in enumerate(_paddings(call, x.dim())) if pair != (0, 0)]
    if all(call.local_shape[d] == call.shape()[d] and x.shape[d] == whole[d] for d, _ in grown):
        return call.run_torch()
    for d, pair in grown:
        wanted = _sources(mode, whole[d], *pair)[call.indices(d)]
        x = pick_entries(x, d, call.indices(d, "self"), wanted, call["value"] or 0.0)
    return x


@sharding_rule("aten.pad", cost=COPY, local=_pad, moves_data=True)
def pad(site: Site) -> Signature | None:
    """y[.., p] = x[.., p - before], beyond the edge a constant, the edge, or the image mirrored or repeated."""
    shape, labels = site.shape("self"), make_labels(len(site.output.shape))
    read: list[Label] = []
    for label, size, (before, after) in zip(labels, shape, _paddings(site, len(shape)), strict=True):
        sources = _sources(site["mode"], size, before, after).tolist() if (before, after) != (0, 0) else range(size)
        read.append(fit_window(label, size, sources, sources, stride=1, divisor=1))
    return Signature({"self": read}, labels, work=0.0)


# Pixels -----------------------------------------------------------------------------------------------------------


def _shuffle(call: Call) -> Tensor:
    factor, full = call["upscale_factor"], len(call.shape())
    y = F.pixel_shuffle(call["self"], factor)
    for d in (full - 2, full - 1):
        (start, stop), (low, _) = output_reach(call, d), operand_reach(call, "self", d)
        y = y.narrow(d, start - low * factor, stop - start)
    return y


@sharding_rule("aten.pixel_shuffle", cost=COPY, local=_shuffle)
def pixel_shuffle(site: Site) -> Signature | None:
    """y[.., c, h r + i, w r + j] = x[.., c i j, h, w]"""
    factor, out, sizes = site["upscale_factor"], site.output.shape, site.shape("self")[-2:]
    lead = make_labels(len(out) - 3)
    read: list[Label] = []
    for p, size in zip(("p0", "p1"), sizes, strict=True):
        sources = [o // factor for o in range(size * factor)]
        read.append(fit_window(p, size, sources, sources, stride=1, divisor=factor))
    channels = Composite((("c", out[-3]), (None, factor * factor)))
    return Signature({"self": [*lead, channels, *read]}, [*lead, "c", "p0", "p1"], work=0.0)


@sharding_rule("aten.pixel_unshuffle", cost=COPY)
def pixel_unshuffle(site: Site) -> Signature | None:
    """y[.., c i j, h, w] = x[.., c, h r + i, w r + j]"""
    factor = site["downscale_factor"]
    lead = make_labels(len(site.output.shape) - 3)
    read = [Filter(factor, 0, factor).label(p) for p in ("p0", "p1")]
    channels = Composite((("c", site.shape("self")[-3]), ("q", factor * factor)))
    output: list[Label] = [*lead, channels, "p0", "p1"]
    return Signature({"self": [*lead, "c", *read]}, output, fixed=frozenset({"q"}), work=0.0)


@sharding_rule("aten.channel_shuffle", cost=COPY)
def channel_shuffle(site: Site) -> Signature | None:
    """Channels change places, and stay whole."""
    labels = make_labels(len(site.output.shape))
    return Signature({"self": labels}, labels, fixed=frozenset({labels[1]}), work=0.0)


@sharding_rule("aten.grid_sampler", "aten.grid_sampler_2d", "aten.grid_sampler_3d", cost=FUNCTION)
def grid_sampler(site: Site) -> Signature | None:
    """y[b, c, p..] = x[b, c, ..] near grid[b, p.., :]; the image may be read anywhere."""
    space = make_labels(len(site.output.shape) - 2, "p")
    operands: dict[str, Labels] = {"input": ["b", "c", *[None] * len(space)], "grid": ["b", *space, None]}
    return Signature(operands, ["b", "c", *space], work=2.0 ** len(space))
