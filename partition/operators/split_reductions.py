"""Rows of reductions that are no sums: parts of the reduced dimensions tell what they hold, see row.Summary."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .sharding_rule import PART, Local, Summary, dims, row
from .rows_reduction import reduced
from .signature import Call, Label, Signature, Site
from .partial_reductions import (
    EXPONENTIALS,
    EXTREMES,
    MOMENTS,
    PLACES,
    exponentials_joined,
    exponentials_of,
    extremes_joined,
    extremes_of,
    moments_joined,
    moments_of,
    places_joined,
    places_of,
)


def _signature(site: Site, *, joined: bool) -> Signature:
    """y[..] depends on all of x along the reduced dimensions, which are joined, or stay whole."""
    shape = site.shape("self")
    labels, over = dims(len(shape)), reduced(site, len(shape))
    kept: list[Label] = [None if d in over else label for d, label in enumerate(labels)]
    output = kept if site["keepdim"] else [label for label in kept if label is not None]
    if not joined or not site["self"].dtype.startswith(("float", "bfloat")):
        return Signature({"self": kept}, output, work=float(math.prod(shape[d] for d in over)))
    return Signature({"self": labels}, output, joined=frozenset(labels[d] for d in over))


def _summary(
    width: int, part: Callable[[Tensor, list[int]], Tensor], join: Callable[[Call, Tensor], Tensor]
) -> Summary:
    """Of a part of x and the dimensions that are reduced, and of what all parts told."""

    def told(call: Call) -> Tensor:
        x: Tensor = call["self"].to(call.dtype)
        return part(x, reduced(call, x.dim()))

    return Summary(width, told, _completed(join))


def _completed(join: Callable[[Call, Tensor], Tensor]) -> Local:
    def joined(call: Call) -> Tensor:
        assert call.parts is not None
        return join(call, call.parts).reshape(call.local_shape).to(call.dtype)

    return joined


def _sign(call: Call) -> int:
    """The least value is the largest of the negated ones."""
    return -1 if call.op.row.removesuffix(PART).endswith("min") else 1


# Extremes -----------------------------------------------------------------------------------------------------------


def _extremes(call: Call) -> Tensor:
    x: Tensor = _sign(call) * call["self"].to(call.dtype)
    return extremes_of(x, reduced(call, x.dim()))


def _extreme(call: Call, parts: Tensor) -> Tensor:
    return _sign(call) * extremes_joined(parts)


@row("aten.amax", "aten.amin", summary=Summary(EXTREMES, _extremes, _completed(_extreme)))
def extreme(site: Site) -> Signature | None:
    """The gradient is shared by all places that have the value."""
    return _signature(site, joined=True)


def _places(call: Call) -> Tensor:
    x: Tensor = _sign(call) * call["self"].to(call.dtype)
    if call["dim"] is None:
        return extremes_of(x, range(x.dim()))
    dim = call["dim"] % x.dim()
    return places_of(x, dim, call.indices(dim, "self"))


def _placed(call: Call, parts: Tensor) -> Tensor:
    if call["dim"] is None:
        return _sign(call) * extremes_joined(parts)
    value, index = places_joined(parts)
    wants_index = "arg" in call.op.row or call["@output"] == 1
    return index if wants_index else _sign(call) * value


@row(
    *(f"aten.{name}" for name in ("max", "min", "argmax", "argmin")),
    summary=Summary(PLACES, _places, _completed(_placed), exact=True),
)
def first_extreme(site: Site) -> Signature | None:
    """Along one dimension: the value, whose gradient goes to the first place that has it, or the index of that.

    Of everything: the value, as `extreme` has it.
    """
    return _signature(site, joined=site["dim"] is not None or "arg" not in site.target)


# Others -------------------------------------------------------------------------------------------------------------


@row(
    "aten.logsumexp",
    summary=_summary(EXPONENTIALS, exponentials_of, lambda call, parts: exponentials_joined(parts)),
)
def logsumexp(site: Site) -> Signature | None:
    """log of the sum of exp(x)."""
    return _signature(site, joined=True)


def _variance(call: Call, parts: Tensor) -> Tensor:
    count, _, squares = moments_joined(parts)
    unbiased, correction = call["unbiased"], call["correction"]
    less = int(unbiased) if unbiased is not None else 1 if correction is None else correction
    variance = squares / (count - less).clamp_min(0)
    if call.op.row == "aten.var":
        return variance
    flat = variance == 0  # where torch gives a gradient of 0, not of 0 / 0
    return torch.where(flat, 1, variance).sqrt().masked_fill(flat, 0)


@row("aten.var", "aten.std", summary=_summary(MOMENTS, moments_of, _variance))
def variance(site: Site) -> Signature | None:
    """The mean squared distance from the mean, or its root."""
    return _signature(site, joined=True)
