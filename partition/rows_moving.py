"""Rows of operators that only move data: views, slices, concatenation, and the store into a buffer."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .row import aligned, dims, row
from .signature import At, Call, Label, Labels, Signature, Site, Sliding


def _reshape(call: Call) -> Tensor:
    x: Tensor = call["self"]
    return x.reshape(call.local_shape)


@row(
    *(f"aten.{name}" for name in ("reshape", "flatten", "unflatten", "unsqueeze", "squeeze")),
    local=_reshape,
)
def view(site: Site) -> Signature | None:
    """Neighbouring dimensions that hold the same elements are one index range; axes split and merge."""
    operand: list[Label] = []
    output: list[Label] = []
    for i, (here, there) in enumerate(_groups(site.shape("self"), site.output.shape)):
        operand += [f"d{i}"] * here
        output += [f"d{i}"] * there
    return Signature({"self": operand}, output, work=0.0)


def _groups(a: Sequence[int], b: Sequence[int]) -> list[tuple[int, int]]:
    """How many dimensions of two shapes go together: the smallest runs of the same number of elements."""
    groups, here, there = [], list(a), list(b)
    while here or there:
        left, right = here[:1] or [1], there[:1] or [1]
        while math.prod(left) != math.prod(right):
            shorter, rest = (left, here) if math.prod(left) < math.prod(right) else (right, there)
            shorter.append(rest[len(shorter)])
        groups.append((min(len(left), len(here)), min(len(right), len(there))))
        here, there = here[len(left) :], there[len(right) :]
    return groups


@row("aten.expand", local=lambda call: call["self"].expand(call.local_shape))
def expand(site: Site) -> Signature | None:
    """Broadcast to a larger shape."""
    out = site.output.shape
    labels = dims(len(out))
    return Signature({"self": aligned(site.shape("self"), out, labels)}, labels, work=0.0)


@row("aten.transpose", "aten.t", "aten.permute")
def transpose(site: Site) -> Signature | None:
    """y[.., j, .., i, ..] = x[.., i, .., j, ..]"""
    rank = len(site.output.shape)
    labels, order = dims(rank), list(range(rank))
    if site["dims"] is not None:
        order = [d % rank for d in site["dims"]]
    elif site["dim0"] is not None:
        a, b = site["dim0"] % rank, site["dim1"] % rank
        order[a], order[b] = order[b], order[a]
    else:
        order.reverse()
    return Signature({"self": labels}, [labels[d] for d in order], work=0.0)


def _select(call: Call) -> Tensor:
    x: Tensor = call["self"]
    dim = call["dim"] % x.dim()
    return x.select(dim, 0) if call.narrowed("self", dim) else call.plain()


@row("aten.select", local=_select, moves=True)
def select(site: Site) -> Signature | None:
    """y[..] = x[.., index, ..]"""
    shape = site.shape("self")
    dim = site["dim"] % len(shape)
    index = site["index"] % shape[dim]
    labels = dims(len(shape))
    read: list[Label] = [At(index, index + 1) if d == dim else label for d, label in enumerate(labels)]
    return Signature({"self": read}, [label for d, label in enumerate(labels) if d != dim], work=0.0)


def _slice(call: Call) -> Tensor:
    x: Tensor = call["self"]
    dim = call["dim"] % x.dim()
    if not call.narrowed("self", dim):
        return call.plain()
    return x[(slice(None),) * dim + (slice(None, None, call["step"]),)]


@row("aten.slice", local=_slice, moves=True)
def slice_(site: Site) -> Signature | None:
    """y[.., i, ..] = x[.., start + i * step, ..]"""
    shape, out = site.shape("self"), site.output.shape
    dim, step = site["dim"] % len(shape), site["step"]
    if not out[dim]:
        return None
    start = site["start"] or 0
    start = min(max(start + shape[dim] if start < 0 else start, 0), shape[dim])
    labels = dims(len(shape))
    read: list[Label] = list(labels)
    read[dim] = Sliding(labels[dim], step, start, 1, covers=False) if out[dim] > 1 else At(start, start + 1)
    return Signature({"self": read}, labels, work=0.0)


def _cat(call: Call) -> Tensor:
    parts = [t for t in call["tensors"] if t is not None]
    return parts[0].clone() if len(parts) == 1 else torch.cat(parts, call["dim"])


@row("aten.cat", local=_cat)
def cat(site: Site) -> Signature | None:
    """y = x0, x1, ... one behind the other along `dim`."""
    labels = dims(len(site.output.shape))
    dim = (site["dim"] or 0) % len(labels)
    operands: dict[str, Labels] = {}
    offset = 0
    for i, tensor in enumerate(site["tensors"]):
        if len(tensor.shape) != len(labels):
            return None
        read: list[Label] = list(labels)
        read[dim] = Sliding(labels[dim], 1, -offset, 1) if tensor.shape[dim] > 1 else At(0, 1)
        operands[f"tensors[{i}]"] = read
        offset += tensor.shape[dim]
    small = any(tensor.shape[dim] <= 1 for tensor in site["tensors"])
    return Signature(operands, labels, fixed=frozenset({labels[dim]} if small else ()), work=0.0)


STORE = "aten.copy_.default"


def _store(call: Call) -> Tensor:
    buffer: Tensor = call["self"]
    with torch.no_grad():
        return buffer.copy_(call["src"])


@row("aten.copy_", local=_store, moves=True)
def store(site: Site) -> Signature | None:
    """The buffer `self` becomes `src`: how a model's state changes in a step."""
    out = site.output.shape
    labels = dims(len(out))
    return Signature({"self": labels, "src": aligned(site.shape("src"), out, labels)}, labels, work=0.0)
