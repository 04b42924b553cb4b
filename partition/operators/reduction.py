"""Rows of operators that work along dimensions which stay whole: scans, orders, some reductions."""

import math

from .sharding_rule import aligned, dims, row, together
from .rows_reduction import reduced
from .signature import Label, Labels, Signature, Site

SCANS = ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "sort", "argsort")
REDUCTIONS = (
    *("aminmax", "prod", "any", "all", "median", "mode", "kthvalue", "var_mean", "std_mean", "norm"),
    "linalg_vector_norm",
)


@row(*(f"aten.{name}" for name in SCANS))
def scan(site: Site) -> Signature | None:
    """y[.., i, ..] depends on all of x[.., :, ..]"""
    labels = dims(len(site.output.shape))
    fixed = frozenset({labels[site["dim"] % len(labels)]} if labels else ())
    return Signature({"self": labels}, labels, fixed=fixed)


@row("aten.topk", "aten.diff")
def other_length(site: Site) -> Signature | None:
    """As a scan, but the result has another length."""
    labels = dims(len(site.output.shape))
    if not labels:
        return None
    dim = site["dim"] % len(labels)
    read: list[Label] = [None if d == dim else label for d, label in enumerate(labels)]
    operands: dict[str, Labels] = dict.fromkeys(site.tensors, read)
    work = site.shape("self")[dim] / site.output.shape[dim]
    return Signature(operands, labels, fixed=frozenset({labels[dim]}), work=work)


@row(*(f"aten.{name}" for name in REDUCTIONS))
def reduction(site: Site) -> Signature | None:
    """y[..] depends on all of x along the reduced dimensions."""
    shape = site.shape("self")
    labels, over = dims(len(shape)), reduced(site, len(shape))
    read: list[Label] = [None if d in over else label for d, label in enumerate(labels)]
    output = read if site["keepdim"] else [label for label in read if label is not None]
    return Signature({"self": read}, output, work=float(math.prod(shape[d] for d in over)))


def _pair(site: Site, shape: tuple[int, ...], dim: int) -> dict[str, Labels]:
    """Labels of x1 and x2 broadcast to `shape`, dimension `dim` whole."""
    labels = dims(len(shape))
    operands: dict[str, Labels] = {}
    for name in ("x1", "x2"):
        given = site.shape(name)
        first = len(shape) - len(given)
        operands[name] = [None if first + d == dim or size == 1 else labels[first + d] for d, size in enumerate(given)]
    return operands


@row("aten.cosine_similarity", "aten.pairwise_distance")
def compared(site: Site) -> Signature | None:
    """y[..] = f(x1[.., :, ..], x2[.., :, ..]), the other dimensions broadcast."""
    rank = max(len(site.shape("x1")), len(site.shape("x2")))
    shape = together(site.shape("x1"), site.shape("x2"))
    dim = (site["dim"] if site["dim"] is not None else -1) % rank
    output: list[Label] = [label for d, label in enumerate(dims(rank)) if d != dim]
    if site["keepdim"]:
        output.insert(dim, None)
    return Signature(_pair(site, shape, dim), output, work=3.0 * shape[dim])


@row("aten.linalg_cross")
def cross(site: Site) -> Signature | None:
    """y[.., :, ..] = a[.., :, ..] x b[.., :, ..], of three elements each; the other dimensions broadcast."""
    shape = site.output.shape
    labels = dims(len(shape))
    operands: dict[str, Labels] = {n: aligned(site.shape(n), shape, labels) for n in ("self", "other")}
    return Signature(operands, labels, fixed=frozenset({labels[site["dim"] % len(labels)]}), work=3.0)


@row("aten.cdist")
def cdist(site: Site) -> Signature | None:
    """y[.., i, j] = distance of x1[.., i, :] and x2[.., j, :]"""
    out = site.output.shape
    lead = dims(len(out) - 2, "b")
    operands: dict[str, Labels] = {}
    for name, label in (("x1", "i"), ("x2", "j")):
        shape = site.shape(name)
        operands[name] = [*aligned(shape[:-2], out[:-2], lead), label, None]
    return Signature(operands, [*lead, "i", "j"], work=3.0 * site.shape("x1")[-1])
