"""Sharding rules of operators that read or write parts of a tensor: slices, concatenation, indices in tensors."""

import torch
from torch import Tensor

from ..sharding.cost_class import COPY, VIEW
from ..sharding.sharding_rule import align_labels, broadcast_shape, make_labels, sharding_rule
from ..sharding.signature import Call, DraftTensor, FixedRange, Label, Labels, Signature, Site, Sliding

# By numbers --------------------------------------------------------------------------------------------------------


def _select(call: Call) -> Tensor:
    x: Tensor = call["self"]
    dim = call["dim"] % x.dim()
    return x.select(dim, 0) if call.is_narrowed("self", dim) else call.run_torch()


@sharding_rule("aten.select", cost=VIEW, local=_select, moves_data=True)
def select(site: Site) -> Signature | None:
    """y[..] = x[.., index, ..]"""
    shape = site.shape("self")
    dim = site["dim"] % len(shape)
    index = site["index"] % shape[dim]
    labels = make_labels(len(shape))
    read: list[Label] = [FixedRange(index, index + 1) if d == dim else label for d, label in enumerate(labels)]
    return Signature({"self": read}, [label for d, label in enumerate(labels) if d != dim], work=0.0)


def _first(start: int | None, size: int) -> int:
    """Return where a slice starts, within [0, size]."""
    start = start or 0
    return min(max(start + size if start < 0 else start, 0), size)


def _slice(call: Call) -> Tensor:
    x: Tensor = call["self"]
    dim = call["dim"] % x.dim()
    if call.is_narrowed("self", dim):
        return x[(slice(None),) * dim + (slice(None, None, call["step"]),)]
    if not call.is_cut_along([dim]):
        return call.run_torch()
    # Chunks of a dimension of several axes, of which the outer ones are there whole.
    wanted = _first(call["start"], call.shape("self")[dim]) + call["step"] * call.indices(dim)
    return x.index_select(dim, torch.searchsorted(call.indices(dim, "self"), wanted))


@sharding_rule("aten.slice", cost=VIEW, local=_slice, moves_data=True)
def slice_(site: Site) -> Signature | None:
    """y[.., i, ..] = x[.., start + i * step, ..]"""
    shape, out = site.shape("self"), site.output.shape
    dim, step = site["dim"] % len(shape), site["step"]
    start = _first(site["start"], shape[dim])
    labels = make_labels(len(shape))
    read: list[Label] = list(labels)
    if shape[dim] != out[dim]:
        read[dim] = Sliding(labels[dim], step, start, 1, covers=False) if out[dim] > 1 else FixedRange(start, start + 1)
    return Signature({"self": read}, labels, work=0.0)


def _cat(call: Call) -> Tensor:
    parts = [t for t in call["tensors"] if t is not None]
    return (parts[0].clone() if len(parts) == 1 else torch.cat(parts, call["dim"])).to(call.dtype)


@sharding_rule("aten.cat", cost=COPY, local=_cat)
def cat(site: Site) -> Signature | None:
    """y = x0, x1, ... one behind the other along `dim`."""
    labels = make_labels(len(site.output.shape))
    dim = (site["dim"] or 0) % len(labels)
    operands: dict[str, Labels] = {}
    offset = 0
    for i, tensor in enumerate(site["tensors"]):
        if len(tensor.shape) != len(labels):
            return None
        read: list[Label] = list(labels)
        read[dim] = Sliding(labels[dim], 1, -offset, 1, covers=False) if tensor.shape[dim] > 1 else FixedRange(0, 1)
        operands[f"tensors[{i}]"] = read
        offset += tensor.shape[dim]
    small = any(tensor.shape[dim] <= 1 for tensor in site["tensors"])
    return Signature(operands, labels, fixed=frozenset({labels[dim]} if small else ()), work=0.0)


@sharding_rule("aten.stack", cost=COPY)
def stack(site: Site) -> Signature | None:
    """y[.., s, ..] = xs[.., ..]; the new dimension stays whole."""
    labels = make_labels(len(site.output.shape))
    new = labels[site["dim"] % len(labels)]
    rest = [label for label in labels if label != new]
    operands: dict[str, Labels] = {f"tensors[{i}]": rest for i in range(len(site["tensors"]))}
    return Signature(operands, labels, fixed=frozenset({new}), work=0.0)


def _put_slice(call: Call) -> Tensor:
    """Replace a slice, or one index, of the dimension that stays whole; complex numbers in a copy.

    Of these torch has no gradient of the operator itself.
    """
    if not call.dtype.is_complex:
        return call.run_torch()
    out: Tensor = call["self"].clone()
    dim = call["dim"] % out.dim()
    if "index" in call.arguments:
        part = out.select(dim, call["index"])
    else:
        part = out[(slice(None),) * dim + (slice(call["start"], call["end"], call["step"]),)]
    part.copy_(call["src"])
    return out


@sharding_rule("aten.slice_scatter", "aten.select_scatter", cost=COPY, local=_put_slice, moves_data=True)
def slice_scatter(site: Site) -> Signature | None:
    """x with a slice of it replaced; the dimension that is sliced stays whole."""
    labels = make_labels(len(site.output.shape))
    dim = site["dim"] % len(labels)
    source: list[Label] = [None if d == dim else label for d, label in enumerate(labels)]
    if len(site.shape("src")) < len(labels):
        del source[dim]
    return Signature({"self": labels, "src": source}, labels, fixed=frozenset({labels[dim]}), work=0.0)


@sharding_rule("aten.unfold", cost=VIEW)
def unfold(site: Site) -> Signature | None:
    """y[.., p, .., k] = x[.., p * step + k, ..]"""
    labels = make_labels(len(site.shape("self")))
    read: list[Label] = list(labels)
    if labels:
        dim = site["dimension"] % len(labels)
        single = site.output.shape[dim] == 1
        read[dim] = FixedRange(0, site["size"]) if single else Sliding(labels[dim], site["step"], 0, site["size"])
    return Signature({"self": read}, [*labels, "k"], fixed=frozenset({"k"}), work=0.0)


# By tensors --------------------------------------------------------------------------------------------------------


@sharding_rule("aten.index_select", cost=COPY)
def index_select(site: Site) -> Signature | None:
    """y[.., i, ..] = x[.., index[i], ..]; the dimension that is chosen from is read whole."""
    shape = site.shape("self")
    if not shape:
        return None
    labels = make_labels(len(shape))
    dim = site["dim"] % len(labels)
    read: list[Label] = [None if d == dim else label for d, label in enumerate(labels)]
    return Signature({"self": read, "index": [labels[dim]] * len(site.shape("index"))}, labels)


@sharding_rule("aten.gather", cost=COPY)
def gather(site: Site) -> Signature | None:
    """y[.., i, ..] = x[.., index[.., i, ..], ..]; of the other dimensions the first `index.shape` are read."""
    shape, out = site.shape("self"), site.output.shape
    labels = make_labels(len(out))
    if not labels:
        return None
    read: list[Label] = []
    for d, (size, there) in enumerate(zip(shape, out, strict=True)):
        narrower = Sliding(labels[d], 1, 0, 1, covers=False) if there > 1 else FixedRange(0, 1)
        read.append(None if d == site["dim"] % len(labels) else labels[d] if size == there else narrower)
    return Signature({"self": read, "index": labels}, labels)


@sharding_rule("aten.take_along_dim", cost=COPY)
def take_along_dim(site: Site) -> Signature | None:
    """As `gather`, with the other dimensions broadcast."""
    out = site.output.shape
    if site["dim"] is None or not out:
        return None
    labels = make_labels(len(out))
    dim = site["dim"] % len(out)
    read = align_labels([1 if d == dim else size for d, size in enumerate(site.shape("self"))], out, labels)
    return Signature({"self": read, "indices": align_labels(site.shape("indices"), out, labels)}, labels)


def _find_indexed(site: Site) -> tuple[list[int], tuple[int, ...], int] | None:
    """Return the dimensions that tensors index, the tensors' broadcast shape, and its position in the result.

    None where a mask indexes, so that the result's shape depends on data.
    """
    indices = {d: tensor for d, tensor in enumerate(site["indices"]) if tensor is not None}
    if not indices or any(tensor.dtype in ("bool", "uint8") for tensor in indices.values()):
        return None
    at = sorted(indices)
    adjacent = at == list(range(at[0], at[-1] + 1))
    return at, broadcast_shape(*(tensor.shape for tensor in indices.values())), at[0] if adjacent else 0


@sharding_rule("aten.index", cost=COPY)
def index(site: Site) -> Signature | None:
    """y[.., i.., ..] = x[.., a[i..], b[i..], ..]; the dimensions that are indexed are read whole."""
    indexed = _find_indexed(site)
    if indexed is None:
        return None
    at, shape, position = indexed
    new = make_labels(len(shape), "i")
    read: list[Label] = [None if d in at else f"d{d}" for d in range(len(site.shape("self")))]
    output = [label for label in read if isinstance(label, str)]
    output[position:position] = new
    operands: dict[str, Labels] = {"self": read}
    operands |= {f"indices[{d}]": align_labels(site["indices"][d].shape, shape, new) for d in at}
    return Signature(operands, output)


@sharding_rule("aten.index_put", cost=COPY)
def index_put(site: Site) -> Signature | None:
    """x with values put where tensors say; the dimensions that are indexed stay whole, where a mask says none does."""
    labels, values = make_labels(len(site.output.shape)), site.shape("values")
    masks = [tensor for tensor in site["indices"] if tensor is not None and tensor.dtype == "bool"]
    if masks:
        return _masked_put(site, labels, masks[0])
    indexed = _find_indexed(site)
    if indexed is None:
        return None
    at, shape, position = indexed
    rest = [d for d in range(len(labels)) if d not in at]
    result: list[Label] = [labels[d] for d in rest]
    sizes = [site.output.shape[d] for d in rest]
    result[position:position], sizes[position:position] = [None] * len(shape), shape
    operands: dict[str, Labels] = {"self": labels, "values": _broadcast(values, sizes, result)}
    operands |= {f"indices[{d}]": [None] * len(site["indices"][d].shape) for d in at}
    return Signature(operands, labels, fixed=frozenset(labels[d] for d in at))


def _masked_put(site: Site, labels: list[str], mask: DraftTensor) -> Signature | None:
    """One mask over the first dimensions, and one value."""
    single = all(size == 1 for size in site.shape("values"))
    if len([tensor for tensor in site["indices"] if tensor is not None]) > 1 or site["indices"][0] is None:
        return None
    if not single or site["accumulate"]:
        return None
    values: list[Label] = [None] * len(site.shape("values"))
    return Signature({"self": labels, "indices[0]": labels[: len(mask.shape)], "values": values}, labels)


def _broadcast(shape: tuple[int, ...], full: list[int], labels: list[Label]) -> list[Label]:
    tail = len(full) - len(shape)
    return [None if size == 1 else label for size, label in zip(shape, labels[tail:], strict=True)]


@sharding_rule("aten.scatter", "aten.scatter_add", "aten.scatter_reduce", cost=COPY)
def scatter(site: Site) -> Signature | None:
    """x with src[.., i, ..] put at index[.., i, ..]; that dimension stays whole, and all that are put into in part."""
    shape = site.output.shape
    if not shape:
        return None
    labels = make_labels(len(shape))
    sources = [name for name in ("index", "src") if site[name] is not None]
    whole = {site["dim"] % len(shape)}
    whole |= {d for d, size in enumerate(shape) if any(site.shape(name)[d] != size for name in sources)}
    read: list[Label] = [None if d in whole else label for d, label in enumerate(labels)]
    operands: dict[str, Labels] = {"self": labels} | dict.fromkeys(sources, read)
    return Signature(operands, labels, fixed=frozenset(labels[d] for d in whole))


@sharding_rule("aten.index_add", "aten.index_copy", "aten.index_fill", cost=COPY)
def index_put_rows(site: Site) -> Signature | None:
    """x with rows added, replaced or filled where an index says; that dimension stays whole."""
    labels = make_labels(len(site.output.shape))
    if not labels:
        return None
    dim = site["dim"] % len(labels)
    operands: dict[str, Labels] = {"self": labels, "index": [None] * len(site.shape("index"))}
    if "source" in site.tensors:
        rank = len(site.shape("source"))  # a single row may come without its dimension
        operands["source"] = [None if d == dim else label for d, label in enumerate(labels[:rank])]
    if "value" in site.tensors:
        operands["value"] = []
    return Signature(operands, labels, fixed=frozenset({labels[dim]}))


@sharding_rule("cutset.dispatch", "cutset.combine", cost=COPY)
def route(site: Site) -> Signature | None:
    """x in the rows for which `chosen` is true anywhere (see operators.routed_rows)."""
    labels, dims = make_labels(len(site.output.shape)), site["chosen_dims"]
    chosen: list[Label] = [None] * len(site.shape("chosen"))
    for position, dim in enumerate(dims):
        chosen[dim] = labels[site["dim"] + position]
    return Signature({"self": labels, "chosen": chosen}, labels, work=0.0)
