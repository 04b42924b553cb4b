"""Sharding rules of non-additive reductions: parts of the reduced dimensions exchange summaries, see `Summary`."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..sharding.cost_class import FUNCTION, REDUCTION
from ..sharding.partial_reductions import (
    EXPONENTIALS,
    EXTREMES,
    FIRST_EXTREMES,
    MOMENTS,
    combine_exponentials,
    combine_extremes,
    combine_first_extremes,
    combine_moments,
    compute_exponentials,
    compute_extremes,
    compute_first_extremes,
    compute_moments,
)
from ..sharding.sharding_rule import SUMMARY_SUFFIX, RunBox, Summary, make_labels, sharding_rule
from ..sharding.signature import Call, Label, Signature, Site
from .reduction import reduced_dims


def _signature(site: Site, *, can_cut: bool) -> Signature:
    """y[..] depends on all of x along the reduced dimensions, which are non-additive, or read whole."""
    shape = site.shape("self")
    labels, over = make_labels(len(shape)), reduced_dims(site, len(shape))
    kept: list[Label] = [None if d in over else label for d, label in enumerate(labels)]
    output = kept if site["keepdim"] else [label for label in kept if label is not None]
    if not can_cut or not site["self"].dtype.startswith(("float", "bfloat")):
        return Signature({"self": kept}, output, work=float(math.prod(shape[d] for d in over)))
    return Signature({"self": labels}, output, non_additive=frozenset(labels[d] for d in over))


def _make_summary(
    width: int, summarise: Callable[[Tensor, list[int]], Tensor], combine: Callable[[Call, Tensor], Tensor]
) -> Summary:
    """Return the summary of a reduction.

    summarise: of a part of x and the dimensions that are reduced. combine: of the summaries of all parts.
    """

    def summarise_box(call: Call) -> Tensor:
        x: Tensor = call["self"].to(call.dtype)
        return summarise(x, reduced_dims(call, x.dim()))

    return Summary(width, summarise_box, _combine_box(combine))


def _combine_box(combine: Callable[[Call, Tensor], Tensor]) -> RunBox:
    def combine_box(call: Call) -> Tensor:
        assert call.summaries is not None
        return combine(call, call.summaries).reshape(call.local_shape).to(call.dtype)

    return combine_box


def _sign(call: Call) -> int:
    """Return -1 where the least value is wanted, which is the largest of the negated ones."""
    return -1 if call.op.sharding_rule.removesuffix(SUMMARY_SUFFIX).endswith("min") else 1


# Extremes -----------------------------------------------------------------------------------------------------------


def _summarise_extremes(call: Call) -> Tensor:
    x: Tensor = _sign(call) * call["self"].to(call.dtype)
    return compute_extremes(x, reduced_dims(call, x.dim()))


def _combine_extremes(call: Call, summaries: Tensor) -> Tensor:
    return _sign(call) * combine_extremes(summaries)


@sharding_rule(
    "aten.amax",
    "aten.amin",
    cost=REDUCTION,
    summary=Summary(EXTREMES, _summarise_extremes, _combine_box(_combine_extremes)),
)
def extreme(site: Site) -> Signature | None:
    """y[..] = the extreme of x along the reduced dimensions; all places that have the value share its gradient."""
    return _signature(site, can_cut=True)


def _summarise_first_extremes(call: Call) -> Tensor:
    x: Tensor = _sign(call) * call["self"].to(call.dtype)
    if call["dim"] is None:
        return compute_extremes(x, range(x.dim()))
    dim = call["dim"] % x.dim()
    return compute_first_extremes(x, dim, call.indices(dim, "self"))


def _combine_first_extremes(call: Call, summaries: Tensor) -> Tensor:
    if call["dim"] is None:
        return _sign(call) * combine_extremes(summaries)
    value, index = combine_first_extremes(summaries)
    wants_index = "arg" in call.op.sharding_rule or call["@output"] == 1
    return index if wants_index else _sign(call) * value


@sharding_rule(
    *(f"aten.{name}" for name in ("max", "min", "argmax", "argmin")),
    cost=REDUCTION,
    summary=Summary(FIRST_EXTREMES, _summarise_first_extremes, _combine_box(_combine_first_extremes), exact=True),
)
def first_extreme(site: Site) -> Signature | None:
    """The extreme along one dimension, whose gradient goes to the first place that has it, or the index of that place.

    Over all dimensions: the value, whose gradient is shared as with `extreme`.
    """
    return _signature(site, can_cut=site["dim"] is not None or "arg" not in site.target)


# Others -------------------------------------------------------------------------------------------------------------


@sharding_rule(
    "aten.logsumexp",
    cost=FUNCTION,
    summary=_make_summary(EXPONENTIALS, compute_exponentials, lambda call, summaries: combine_exponentials(summaries)),
)
def logsumexp(site: Site) -> Signature | None:
    """y[..] = log of the sum of exp(x) along the reduced dimensions."""
    return _signature(site, can_cut=True)


def _variance(call: Call, summaries: Tensor) -> Tensor:
    count, _, squares = combine_moments(summaries)
    unbiased, correction = call["unbiased"], call["correction"]
    less = int(unbiased) if unbiased is not None else 1 if correction is None else correction
    variance = squares / (count - less).clamp_min(0)
    if call.op.sharding_rule == "aten.var":
        return variance
    flat = variance == 0  # where torch gives a gradient of 0, not of 0 / 0
    return torch.where(flat, 1, variance).sqrt().masked_fill(flat, 0)


@sharding_rule("aten.var", "aten.std", cost=REDUCTION, summary=_make_summary(MOMENTS, compute_moments, _variance))
def variance(site: Site) -> Signature | None:
    """y[..] = the mean squared distance from the mean along the reduced dimensions, or its root."""
    return _signature(site, can_cut=True)
