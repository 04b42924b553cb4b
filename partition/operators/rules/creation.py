"""Sharding rules of operators that make a tensor of nothing but numbers, or look only at where an element stands."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..sharding.cost_class import ELEMENTWISE
from ..sharding.sharding_rule import make_labels, sharding_rule
from ..sharding.signature import Call, Labels, Signature, Site


@sharding_rule(
    *(f"aten.{name}" for name in ("full", "zeros", "ones", "empty", "scalar_tensor")),
    cost=ELEMENTWISE,
    local=lambda call: call.run_torch(size=call.local_shape),
)
def fill(site: Site) -> Signature | None:
    """y[..] = one number."""
    return Signature({}, make_labels(len(site.output.shape)))


@sharding_rule(
    *(f"aten.{name}" for name in ("arange", "linspace", "logspace")),
    cost=ELEMENTWISE,
    local=lambda call: call.run_torch()[call.indices(0)],
)
def sequence(site: Site) -> Signature | None:
    """y[i] = start + i * step; computed whole and cut, since a vector's entries are not rounded one by one."""
    return Signature({name: [] for name in site.tensors}, ["d0"])


@sharding_rule(
    "aten.tril_indices",
    "aten.triu_indices",
    cost=ELEMENTWISE,
    local=lambda call: call.run_torch()[call.indices(0)[:, None], call.indices(1)],
)
def triangle_indices(site: Site) -> Signature | None:
    """y[:, n] = row and column of the n-th element on one side of a diagonal."""
    return Signature({}, ["d", "n"])


def _meshgrid(call: Call) -> Tensor:
    dim = _along(call.arguments)
    shape = [size if d == dim else 1 for d, size in enumerate(call.local_shape)]
    x: Tensor = call["tensors"][call["@output"]]
    return x.reshape(shape).expand(call.local_shape)


def _along(arguments: Mapping[str, Any]) -> int:
    """Return the dimension along which an output of `meshgrid` changes."""
    output: int = arguments["@output"]
    return 1 - output if arguments.get("indexing") == "xy" and output < 2 else output


@sharding_rule("aten.meshgrid", cost=ELEMENTWISE, local=_meshgrid)
def meshgrid(site: Site) -> Signature | None:
    """y[.., i, ..] = x[i], of several vectors the one that is meant."""
    labels = make_labels(len(site.output.shape))
    if any(len(tensor.shape) != 1 for tensor in site["tensors"]):
        return None
    operands: dict[str, Labels] = {f"tensors[{i}]": [None] for i in range(len(site["tensors"]))}
    operands[f"tensors[{site['@output']}]"] = [labels[_along(site.arguments)]]
    return Signature(operands, labels, work=0.0)


def _eye(call: Call) -> Tensor:
    return (call.indices(0)[:, None] == call.indices(1)).to(call.dtype)


@sharding_rule("aten.eye", cost=ELEMENTWISE, local=_eye)
def eye(site: Site) -> Signature | None:
    """y[i, j] = 1 where i = j."""
    return Signature({}, ["i", "j"])


def _triangle(call: Call) -> Tensor:
    x: Tensor = call["self"]
    above = call.indices(-1) - call.indices(-2)[:, None] - call["diagonal"]
    return x.masked_fill(above > 0 if ".tril." in call.op.target else above < 0, 0)


@sharding_rule("aten.tril", "aten.triu", cost=ELEMENTWISE, local=_triangle)
def triangle(site: Site) -> Signature | None:
    """y[.., i, j] = x[.., i, j] on one side of a diagonal, else 0."""
    labels = make_labels(len(site.output.shape))
    return Signature({"self": labels}, labels)


def _one_hot(call: Call) -> Tensor:
    return call.run_torch().index_select(-1, call.indices(-1))


@sharding_rule("aten.one_hot", cost=ELEMENTWISE, local=_one_hot)
def one_hot(site: Site) -> Signature | None:
    """y[.., c] = 1 where x[..] = c."""
    if site["num_classes"] < 1:  # as many as the data has
        return None
    labels = make_labels(len(site.shape("self")))
    return Signature({"self": labels}, [*labels, "c"])


@sharding_rule("aten.diag_embed", cost=ELEMENTWISE)
def diag_embed(site: Site) -> Signature | None:
    """y[.., i, .., i + offset, ..] = x[.., i]; the new dimensions stay whole."""
    rank = len(site.output.shape)
    new = [site["dim1"] % rank, site["dim2"] % rank]
    labels = make_labels(rank)
    rest = [label for d, label in enumerate(labels) if d not in new]
    return Signature({"self": [*rest, None]}, labels, fixed=frozenset(labels[d] for d in new))
