"""Sharding rules of sums and means, and of operators along dimensions that stay whole: scans, orders, distances."""

import math

from torch import Tensor

from ..sharding.cost_class import FUNCTION, REDUCTION
from ..sharding.sharding_rule import align_labels, broadcast_shape, make_labels, sharding_rule
from ..sharding.signature import Call, Label, Labels, Signature, Site

SCANS = ("cumsum", "cummax", "cummin")
FUNCTION_SCANS = ("cumprod", "logcumsumexp", "sort", "argsort")  # scans that cost what a transcendental function does
REDUCTIONS = ("aminmax", "prod", "any", "all", "var_mean", "std_mean", "norm", "linalg_vector_norm")
ORDER_STATISTICS = ("median", "mode", "kthvalue")


@sharding_rule(*(f"aten.{name}" for name in SCANS), cost=REDUCTION)
@sharding_rule(*(f"aten.{name}" for name in FUNCTION_SCANS), cost=FUNCTION)
def scan(site: Site) -> Signature | None:
    """y[.., i, ..] depends on all of x[.., :, ..]"""
    labels = make_labels(len(site.output.shape))
    fixed = frozenset({labels[site["dim"] % len(labels)]} if labels else ())
    return Signature({"self": labels}, labels, fixed=fixed)


@sharding_rule("aten.topk", cost=FUNCTION)
@sharding_rule("aten.diff", cost=REDUCTION)
def other_length(site: Site) -> Signature | None:
    """As a scan, but the result has another length."""
    labels = make_labels(len(site.output.shape))
    if not labels:
        return None
    dim = site["dim"] % len(labels)
    read: list[Label] = [None if d == dim else label for d, label in enumerate(labels)]
    operands: dict[str, Labels] = dict.fromkeys(site.tensors, read)
    work = site.shape("self")[dim] / site.output.shape[dim]
    return Signature(operands, labels, fixed=frozenset({labels[dim]}), work=work)


@sharding_rule(*(f"aten.{name}" for name in REDUCTIONS), cost=REDUCTION)
@sharding_rule(*(f"aten.{name}" for name in ORDER_STATISTICS), cost=FUNCTION)
def reduction(site: Site) -> Signature | None:
    """y[..] depends on all of x along the reduced dimensions."""
    shape = site.shape("self")
    labels, over = make_labels(len(shape)), reduced_dims(site, len(shape))
    read: list[Label] = [None if d in over else label for d, label in enumerate(labels)]
    output = read if site["keepdim"] else [label for label in read if label is not None]
    return Signature({"self": read}, output, work=float(math.prod(shape[d] for d in over)))


def _pair(site: Site, shape: tuple[int, ...], dim: int) -> dict[str, Labels]:
    """Return the labels of x1 and x2, broadcast to `shape`, with dimension `dim` whole."""
    labels = make_labels(len(shape))
    operands: dict[str, Labels] = {}
    for name in ("x1", "x2"):
        own = site.shape(name)
        first = len(shape) - len(own)
        operands[name] = [None if first + d == dim or size == 1 else labels[first + d] for d, size in enumerate(own)]
    return operands


@sharding_rule("aten.cosine_similarity", "aten.pairwise_distance", cost=REDUCTION)
def distance(site: Site) -> Signature | None:
    """y[..] = f(x1[.., :, ..], x2[.., :, ..]), the other dimensions broadcast."""
    rank = max(len(site.shape("x1")), len(site.shape("x2")))
    shape = broadcast_shape(site.shape("x1"), site.shape("x2"))
    dim = (site["dim"] if site["dim"] is not None else -1) % rank
    output: list[Label] = [label for d, label in enumerate(make_labels(rank)) if d != dim]
    if site["keepdim"]:
        output.insert(dim, None)
    return Signature(_pair(site, shape, dim), output, work=3.0 * shape[dim])


@sharding_rule("aten.linalg_cross", cost=REDUCTION)
def cross(site: Site) -> Signature | None:
    """y[.., :, ..] = a[.., :, ..] x b[.., :, ..], of three elements each; the other dimensions broadcast."""
    shape = site.output.shape
    labels = make_labels(len(shape))
    operands: dict[str, Labels] = {n: align_labels(site.shape(n), shape, labels) for n in ("self", "other")}
    return Signature(operands, labels, fixed=frozenset({labels[site["dim"] % len(labels)]}), work=3.0)


@sharding_rule("aten.cdist", cost=REDUCTION)
def cdist(site: Site) -> Signature | None:
    """y[.., i, j] = distance of x1[.., i, :] and x2[.., j, :]"""
    out = site.output.shape
    lead = make_labels(len(out) - 2, "b")
    operands: dict[str, Labels] = {}
    for name, label in (("x1", "i"), ("x2", "j")):
        shape = site.shape(name)
        operands[name] = [*align_labels(shape[:-2], out[:-2], lead), label, None]
    return Signature(operands, [*lead, "i", "j"], work=3.0 * site.shape("x1")[-1])


def reduced_dims(site_or_call: Site | Call, rank: int) -> list[int]:
    """Return the dimensions that are reduced; all where none are given."""
    dim = site_or_call["dim"]
    if dim is None or dim == [] or not rank:
        return list(range(rank))
    return [d % rank for d in ([dim] if isinstance(dim, int) else dim)]


def _mean(call: Call) -> Tensor:
    shape = call.shape("self")
    over = reduced_dims(call, len(shape))
    x: Tensor = call["self"]
    return x.sum(over, keepdim=bool(call["keepdim"]), dtype=call["dtype"]) / math.prod(shape[d] for d in over)


def _sum(site: Site) -> Signature:
    labels = make_labels(len(site.shape("self")))
    over = {labels[d] for d in reduced_dims(site, len(labels))}
    output: list[Label] = [None if label in over else label for label in labels]
    if not site["keepdim"]:
        output = [label for label in labels if label not in over]
    return Signature({"self": labels}, output, summed=frozenset(over))


@sharding_rule("aten.mean", cost=REDUCTION, local=_mean)
def mean(site: Site) -> Signature | None:
    """The reduced dimensions are summed, and the sum divided by the whole count."""
    return _sum(site)


@sharding_rule("aten.sum", "aten.nansum", "aten.count_nonzero", cost=REDUCTION)
def total(site: Site) -> Signature | None:
    """The reduced dimensions are summed."""
    return _sum(site)
