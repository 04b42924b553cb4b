"""Rows of operators that take parts of a tensor, or put them: slices, concatenation, indices held by tensors."""

import torch
from torch import Tensor

from .sharding_rule import aligned, dims, row, together
from .signature import At, Call, DraftTensor, Label, Labels, Signature, Site, Sliding

# By numbers --------------------------------------------------------------------------------------------------------


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


def _first(start: int | None, size: int) -> int:
    """Where a slice starts."""
    start = start or 0
    return min(max(start + size if start < 0 else start, 0), size)


def _slice(call: Call) -> Tensor:
    x: Tensor = call["self"]
    dim = call["dim"] % x.dim()
    if call.narrowed("self", dim):
        return x[(slice(None),) * dim + (slice(None, None, call["step"]),)]
    if not call.cut_along([dim]):
        return call.plain()
    # Chunks of a dimension of several axes, of which the outer ones are there whole.
    wanted = _first(call["start"], call.shape("self")[dim]) + call["step"] * call.indices(dim)
    return x.index_select(dim, torch.searchsorted(call.indices(dim, "self"), wanted))


@row("aten.slice", local=_slice, moves=True)
def slice_(site: Site) -> Signature | None:
    """y[.., i, ..] = x[.., start + i * step, ..]"""
    shape, out = site.shape("self"), site.output.shape
    dim, step = site["dim"] % len(shape), site["step"]
    start = _first(site["start"], shape[dim])
    labels = dims(len(shape))
    read: list[Label] = list(labels)
    if shape[dim] != out[dim]:
        read[dim] = Sliding(labels[dim], step, start, 1, covers=False) if out[dim] > 1 else At(start, start + 1)
    return Signature({"self": read}, labels, work=0.0)


def _cat(call: Call) -> Tensor:
    parts = [t for t in call["tensors"] if t is not None]
    return (parts[0].clone() if len(parts) == 1 else torch.cat(parts, call["dim"])).to(call.dtype)


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
        read[dim] = Sliding(labels[dim], 1, -offset, 1, covers=False) if tensor.shape[dim] > 1 else At(0, 1)
        operands[f"tensors[{i}]"] = read
        offset += tensor.shape[dim]
    small = any(tensor.shape[dim] <= 1 for tensor in site["tensors"])
    return Signature(operands, labels, fixed=frozenset({labels[dim]} if small else ()), work=0.0)


@row("aten.stack")
def stack(site: Site) -> Signature | None:
    """y[.., s, ..] = xs[.., ..]; the new dimension stays whole."""
    labels = dims(len(site.output.shape))
    new = labels[site["dim"] % len(labels)]
    rest = [label for label in labels if label != new]
    operands: dict[str, Labels] = {f"tensors[{i}]": rest for i in range(len(site["tensors"]))}
    return Signature(operands, labels, fixed=frozenset({new}), work=0.0)


@row("aten.slice_scatter", "aten.select_scatter")
def put_slice(site: Site) -> Signature | None:
    """x with a slice of it replaced; the dimension that is sliced stays whole."""
    labels = dims(len(site.output.shape))
    dim = site["dim"] % len(labels)
    source: list[Label] = [None if d == dim else label for d, label in enumerate(labels)]
    if len(site.shape("src")) < len(labels):
        del source[dim]
    return Signature({"self": labels, "src": source}, labels, fixed=frozenset({labels[dim]}), work=0.0)


@row("aten.unfold")
def unfold(site: Site) -> Signature | None:
    """y[.., p, .., k] = x[.., p * step + k, ..]"""
    labels = dims(len(site.shape("self")))
    read: list[Label] = list(labels)
    if labels:
        dim = site["dimension"] % len(labels)
        single = site.output.shape[dim] == 1
        read[dim] = At(0, site["size"]) if single else Sliding(labels[dim], site["step"], 0, site["size"])
    return Signature({"self": read}, [*labels, "k"], fixed=frozenset({"k"}), work=0.0)


# By tensors --------------------------------------------------------------------------------------------------------


@row("aten.index_select")
def index_select(site: Site) -> Signature | None:
    """y[.., i, ..] = x[.., index[i], ..]; the dimension that is chosen from is read whole."""
    shape = site.shape("self")
    if not shape:
        return None
    labels = dims(len(shape))
    dim = site["dim"] % len(labels)
    read: list[Label] = [None if d == dim else label for d, label in enumerate(labels)]
    return Signature({"self": read, "index": [labels[dim]] * len(site.shape("index"))}, labels)


@row("aten.gather")
def gather(site: Site) -> Signature | None:
    """y[.., i, ..] = x[.., index[.., i, ..], ..]; of the other dimensions the first `index.shape` are read."""
    shape, out = site.shape("self"), site.output.shape
    labels = dims(len(out))
    if not labels:
        return None
    read: list[Label] = []
    for d, (size, there) in enumerate(zip(shape, out, strict=True)):
        narrower = Sliding(labels[d], 1, 0, 1, covers=False) if there > 1 else At(0, 1)
        read.append(None if d == site["dim"] % len(labels) else labels[d] if size == there else narrower)
    return Signature({"self": read, "index": labels}, labels)


@row("aten.take_along_dim")
def take_along(site: Site) -> Signature | None:
    """As gather, the other dimensions broadcast."""
    out = site.output.shape
    if site["dim"] is None or not out:
        return None
    labels = dims(len(out))
    dim = site["dim"] % len(out)
    read = aligned([1 if d == dim else size for d, size in enumerate(site.shape("self"))], out, labels)
    return Signature({"self": read, "indices": aligned(site.shape("indices"), out, labels)}, labels)


def _indexed(site: Site) -> tuple[list[int], tuple[int, ...], int] | None:
    """Dimensions that tensors index, the shape of these tensors together, and where it stands in the result."""
    given = {d: tensor for d, tensor in enumerate(site["indices"]) if tensor is not None}
    if not given or any(tensor.dtype in ("bool", "uint8") for tensor in given.values()):
        return None
    at = sorted(given)
    adjacent = at == list(range(at[0], at[-1] + 1))
    return at, together(*(tensor.shape for tensor in given.values())), at[0] if adjacent else 0


@row("aten.index")
def index(site: Site) -> Signature | None:
    """y[.., i.., ..] = x[.., a[i..], b[i..], ..]; the dimensions that are indexed are read whole."""
    found = _indexed(site)
    if found is None:
        return None
    at, shape, position = found
    new = dims(len(shape), "i")
    read: list[Label] = [None if d in at else f"d{d}" for d in range(len(site.shape("self")))]
    output = [label for label in read if isinstance(label, str)]
    output[position:position] = new
    operands: dict[str, Labels] = {"self": read}
    operands |= {f"indices[{d}]": aligned(site["indices"][d].shape, shape, new) for d in at}
    return Signature(operands, output)


@row("aten.index_put")
def index_put(site: Site) -> Signature | None:
    """x with values put where tensors say; the dimensions that are indexed stay whole, where a mask says none does."""
    labels, values = dims(len(site.output.shape)), site.shape("values")
    masks = [tensor for tensor in site["indices"] if tensor is not None and tensor.dtype == "bool"]
    if masks:
        return _masked_put(site, labels, masks[0])
    found = _indexed(site)
    if found is None:
        return None
    at, shape, position = found
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


@row("aten.scatter", "aten.scatter_add", "aten.scatter_reduce")
def scatter(site: Site) -> Signature | None:
    """x with src[.., i, ..] put at index[.., i, ..]; that dimension stays whole, and all that are put into in part."""
    shape = site.output.shape
    if not shape:
        return None
    labels = dims(len(shape))
    sources = [name for name in ("index", "src") if site[name] is not None]
    whole = {site["dim"] % len(shape)}
    whole |= {d for d, size in enumerate(shape) if any(site.shape(name)[d] != size for name in sources)}
    read: list[Label] = [None if d in whole else label for d, label in enumerate(labels)]
    operands: dict[str, Labels] = {"self": labels} | dict.fromkeys(sources, read)
    return Signature(operands, labels, fixed=frozenset(labels[d] for d in whole))


@row("aten.index_add", "aten.index_copy", "aten.index_fill")
def put_rows(site: Site) -> Signature | None:
    """x with rows added, replaced or filled where an index says; that dimension stays whole."""
    labels = dims(len(site.output.shape))
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
