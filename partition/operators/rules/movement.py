"""Sharding rules of operators that rearrange or repeat whole dimensions, and the store into a buffer."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..sharding.cost_class import COPY, VIEW
from ..sharding.sharding_rule import align_labels, make_labels, sharding_rule
from ..sharding.signature import Call, Composite, Label, Signature, Site


def _reshape(call: Call) -> Tensor:
    x: Tensor = call["self"]
    return x.reshape(call.local_shape)


@sharding_rule(
    *(f"aten.{name}" for name in ("reshape", "flatten", "unflatten", "unsqueeze", "squeeze")),
    cost=VIEW,
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
    """Return how many dimensions of two shapes go together: the smallest runs of the same number of elements."""
    groups, here, there = [], list(a), list(b)
    while here or there:
        left, right = here[:1] or [1], there[:1] or [1]
        while math.prod(left) != math.prod(right):
            shorter, rest = (left, here) if math.prod(left) < math.prod(right) else (right, there)
            shorter.append(rest[len(shorter)])
        groups.append((min(len(left), len(here)), min(len(right), len(there))))
        here, there = here[len(left) :], there[len(right) :]
    return groups


@sharding_rule("aten.expand", "aten.broadcast_to", cost=VIEW, local=lambda call: call["self"].expand(call.local_shape))
def expand(site: Site) -> Signature | None:
    """Broadcast to a larger shape."""
    out = site.output.shape
    labels = make_labels(len(out))
    return Signature({"self": align_labels(site.shape("self"), out, labels)}, labels, work=0.0)


@sharding_rule("aten.transpose", "aten.t", "aten.permute", cost=VIEW)
def transpose(site: Site) -> Signature | None:
    """y[.., j, .., i, ..] = x[.., i, .., j, ..]"""
    rank = len(site.output.shape)
    labels, order = make_labels(rank), list(range(rank))
    if site["dims"] is not None:
        order = [d % rank for d in site["dims"]]
    elif site["dim0"] is not None:
        a, b = site["dim0"] % rank, site["dim1"] % rank
        order[a], order[b] = order[b], order[a]
    else:
        order.reverse()
    return Signature({"self": labels}, [labels[d] for d in order], work=0.0)


# Repetition --------------------------------------------------------------------------------------------------------


def _repeat(call: Call) -> Tensor:
    x: Tensor = call["self"]
    lead = len(call.local_shape) - x.dim()
    return x.repeat([there // here for there, here in zip(call.local_shape, (1,) * lead + x.shape, strict=True)])


@sharding_rule("aten.repeat", "aten.tile", cost=COPY, local=_repeat)
def repeat(site: Site) -> Signature | None:
    """y[.., (r, i), ..] = x[.., i, ..]: the whole tensor again and again."""
    shape = site.shape("self")
    labels = make_labels(len(shape))
    lead = len(site.output.shape) - len(shape)
    output: list[Label] = [f"r{d}" for d in range(-lead, 0)]
    for d, (size, there) in enumerate(zip(shape, site.output.shape[lead:], strict=True)):
        output.append(Composite(((f"r{d}", there // size), (labels[d], size))))
    return Signature({"self": labels}, output, work=0.0)


def _repeat_interleave(call: Call) -> Tensor:
    x: Tensor = call["self"]
    if call["dim"] is None:
        x = x.flatten()
    dim = (call["dim"] or 0) % x.dim()
    return x.repeat_interleave(call.local_shape[dim] // x.shape[dim], dim)


@sharding_rule("aten.repeat_interleave", cost=COPY, local=_repeat_interleave)
def repeat_interleave(site: Site) -> Signature | None:
    """y[.., (i, r), ..] = x[.., i, ..]: every element again and again."""
    if not isinstance(site["repeats"], int):
        return None
    shape, out = site.shape("self"), site.output.shape
    if site["dim"] is None:
        return Signature({"self": ["d"] * len(shape)}, [Composite((("d", math.prod(shape)), ("r", site["repeats"])))])
    labels = make_labels(len(out))
    dim = site["dim"] % len(labels)
    output: list[Label] = list(labels)
    output[dim] = Composite(((labels[dim], shape[dim]), ("r", site["repeats"])))
    return Signature({"self": labels}, output, work=0.0)


# Other orders ------------------------------------------------------------------------------------------------------


@sharding_rule("aten.flip", "aten.roll", "aten.rot90", cost=COPY)
def flip_or_roll(site: Site) -> Signature | None:
    """The dimensions that are reversed, shifted or turned stay whole."""
    rank = len(site.output.shape)
    dims = [d % rank for d in ([site["dims"]] if isinstance(site["dims"], int) else site["dims"])]
    reversed_dims = dims if dims or ".flip." in site.target else range(rank)  # without `dims`, roll shifts all as one
    output = make_labels(rank)
    read: list[Label] = [None if d in reversed_dims else label for d, label in enumerate(output)]
    return Signature({"self": read}, output, fixed=frozenset(output[d] for d in reversed_dims), work=0.0)


@sharding_rule("aten.diagonal", cost=VIEW)
def diagonal(site: Site) -> Signature | None:
    """y[.., k] = x[.., k, .., k + offset, ..]; both dimensions whole."""
    rank = len(site.shape("self"))
    read: list[Label] = list(make_labels(rank))
    for dim in (site["dim1"], site["dim2"]):
        read[dim % rank] = None
    return Signature({"self": read}, [*(d for d in read if d), "k"], fixed=frozenset({"k"}), work=0.0)


def _view_complex(call: Call) -> Tensor:
    """View pairs of numbers as complex ones, or back; a copy of them where torch takes no view."""
    tensor: Tensor = call["self"]
    if not tensor.is_complex():  # a complex number lies at an even place, as a parameter in a flat buffer need not
        *steps, step = tensor.stride()
        if step != 1 or tensor.storage_offset() % 2 or any(step % 2 for step in steps):
            return call.run_torch(self=tensor.clone(memory_format=torch.contiguous_format))
    return call.run_torch()


@sharding_rule("aten.view_as_real", "aten.view_as_complex", cost=VIEW, local=_view_complex, moves_data=True)
def complex_view(site: Site) -> Signature | None:
    """A complex number as a last dimension of two numbers, or back."""
    labels = make_labels(max(len(site.shape("self")), len(site.output.shape)) - 1)
    if "as_real" in site.target:
        return Signature({"self": labels}, [*labels, "c"], fixed=frozenset({"c"}), work=0.0)
    return Signature({"self": [*labels, None]}, labels, work=0.0)


# Buffers -----------------------------------------------------------------------------------------------------------

STORE = "aten.copy_.default"


def _store(call: Call) -> Tensor:
    buffer: Tensor = call["self"]
    with torch.no_grad():
        return buffer.copy_(call["src"])


@sharding_rule("aten.copy_", cost=COPY, local=_store, moves_data=True)
def store(site: Site) -> Signature | None:
    """The buffer `self` becomes `src`: how a model's state changes in a step."""
    out = site.output.shape
    labels = make_labels(len(out))
    return Signature({"self": labels, "src": align_labels(site.shape("src"), out, labels)}, labels, work=0.0)
