"""Rows of sums and means."""

import math

from torch import Tensor

from .sharding_rule import dims, row
from .signature import Call, Label, Signature, Site


def reduced(site_or_call: Site | Call, rank: int) -> list[int]:
    """The dimensions that are reduced; all where none are given."""
    given = site_or_call["dim"]
    if given is None or given == [] or not rank:
        return list(range(rank))
    return [d % rank for d in ([given] if isinstance(given, int) else given)]


def _mean(call: Call) -> Tensor:
    shape = call.shape("self")
    over = reduced(call, len(shape))
    x: Tensor = call["self"]
    return x.sum(over, keepdim=bool(call["keepdim"]), dtype=call["dtype"]) / math.prod(shape[d] for d in over)


def _sum(site: Site) -> Signature:
    labels = dims(len(site.shape("self")))
    over = {labels[d] for d in reduced(site, len(labels))}
    output: list[Label] = [None if label in over else label for label in labels]
    if not site["keepdim"]:
        output = [label for label in labels if label not in over]
    return Signature({"self": labels}, output, summed=frozenset(over))


@row("aten.mean", local=_mean)
def mean(site: Site) -> Signature | None:
    """The reduced dimensions are summed, and the sum divided by the whole count."""
    return _sum(site)


@row("aten.sum", "aten.nansum", "aten.count_nonzero")
def total(site: Site) -> Signature | None:
    """The reduced dimensions are summed."""
    return _sum(site)
