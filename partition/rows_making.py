"""Rows of operators that make a tensor of nothing but numbers, or look only at where an element stands."""

from torch import Tensor

from .row import dims, row
from .signature import Call, Signature, Site


@row(
    *(f"aten.{name}" for name in ("full", "zeros", "ones", "empty", "scalar_tensor")),
    local=lambda call: call.plain(size=call.local_shape),
)
def filled(site: Site) -> Signature | None:
    """y[..] = one number."""
    return Signature({}, dims(len(site.output.shape)))


@row(
    *(f"aten.{name}" for name in ("arange", "linspace", "logspace")),
    local=lambda call: call.plain()[call.indices(0)],
)
def counted(site: Site) -> Signature | None:
    """y[i] = start + i * step; made whole and cut, since a vector's entries are not rounded one by one."""
    return Signature({name: [] for name in site.tensors}, ["d0"])


def _eye(call: Call) -> Tensor:
    return (call.indices(0)[:, None] == call.indices(1)).to(call.dtype)


@row("aten.eye", local=_eye)
def eye(site: Site) -> Signature | None:
    """y[i, j] = 1 where i = j."""
    return Signature({}, ["i", "j"])


def _triangle(call: Call) -> Tensor:
    x: Tensor = call["self"]
    above = call.indices(-1) - call.indices(-2)[:, None] - call["diagonal"]
    return x.masked_fill(above > 0 if ".tril." in call.op.target else above < 0, 0)


@row("aten.tril", "aten.triu", local=_triangle)
def triangle(site: Site) -> Signature | None:
    """y[.., i, j] = x[.., i, j] on one side of a diagonal, else 0."""
    labels = dims(len(site.output.shape))
    return Signature({"self": labels}, labels)


def _one_hot(call: Call) -> Tensor:
    return call.plain().index_select(-1, call.indices(-1))


@row("aten.one_hot", local=_one_hot)
def one_hot(site: Site) -> Signature | None:
    """y[.., c] = 1 where x[..] = c."""
    if site["num_classes"] < 1:  # as many as the data has
        return None
    labels = dims(len(site.shape("self")))
    return Signature({"self": labels}, [*labels, "c"])


@row("aten.diag_embed")
def diag_embed(site: Site) -> Signature | None:
    """y[.., i, .., i + offset, ..] = x[.., i]; the new dimensions stay whole."""
    rank = len(site.output.shape)
    new = [site["dim1"] % rank, site["dim2"] % rank]
    labels = dims(rank)
    rest = [label for d, label in enumerate(labels) if d not in new]
    return Signature({"self": [*rest, None]}, labels, fixed=frozenset(labels[d] for d in new))
