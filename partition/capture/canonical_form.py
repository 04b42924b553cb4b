"""The plain form of an exported operator: one name where torch has several, and nothing read for its shape only.

Also the parts that several results are of one tensor, and the plain twins of in-place operators.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..ir.arguments import named

aten = torch.ops.aten
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]  # operator, arguments in order and by name

# Nothing is left of what these overwrite, and no gradient flows to it.
# fmt: off
PAINTING = (
    "normal_", "uniform_", "exponential_", "bernoulli_", "random_", "log_normal_", "cauchy_", "geometric_", "zero_",
)
# fmt: on


def value_of(node: Node) -> Tensor:
    """The tensor that the trace had for a node, without its values."""
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value


def packet(node: Node) -> str:
    """The operator's name, without namespace and overload; empty for what is no operator."""
    return getattr(getattr(node.target, "_overloadpacket", None), "__name__", "")


# What these are filled with; None where an argument says it.
FILLED = {
    **dict.fromkeys(("zeros_like", "new_zeros", "zero"), 0),
    **dict.fromkeys(("ones_like", "new_ones"), 1),
    **dict.fromkeys(("full_like", "new_full"), None),
}


def plain_form(node: Node) -> Call:
    """The operator and its arguments."""
    first, rest = (node.args[0], node.args[1:]) if node.args else (None, ())
    match packet(node):
        case "view" | "_unsafe_view" | "view_as" | "reshape_as" | "ravel" if node.target is not aten.view.dtype:
            # The local tensor may be laid out in another way, and then needs a copy.
            return aten.reshape.default, (first, list(value_of(node).shape)), {}
        case "expand_as":
            return aten.expand.default, (first, list(value_of(node).shape)), {}
        case "type_as":
            return aten.to.dtype, (first, value_of(node).dtype), {}
        case "swapaxes" | "swapdims":
            return aten.transpose.int, (first, *rest), node.kwargs
        case "mT":
            return aten.transpose.int, (first, -2, -1), {}
        case "numpy_T" | "movedim" | "moveaxis":
            return aten.permute.default, (first, _order(node)), {}
        case "narrow" if isinstance(node.args[2], int):
            dim, start, length = rest
            return aten.slice.Tensor, (first, dim, start, start + length), {}  # type: ignore[operator]
        case "hstack" | "vstack" | "dstack" | "column_stack" | "row_stack" if _stacking(node) is not None:
            return aten.cat.default, (_with_elements(node), _stacking(node)), {}
        case "atleast_1d" | "atleast_2d" | "atleast_3d" if isinstance(first, Node):
            return aten.reshape.default, (first, list(value_of(node).shape)), {}
        case "empty_like" | "new_empty":
            value = value_of(node)
            return aten.empty.memory_format, (list(value.shape),), {"dtype": value.dtype, "device": value.device}
        case "cat" | "concat" | "concatenate":
            return aten.cat.default, (_with_elements(node), *rest), node.kwargs
        case "max" | "min" if "other" in [parameter.name for parameter in node.target._schema.arguments]:  # type: ignore[union-attr]
            return getattr(aten, f"{packet(node)}imum").default, node.args, node.kwargs
        case name if name in FILLED:
            value = value_of(node)
            given = named(node.target, node.args, node.kwargs)
            number = next((given[key] for key in ("fill_value", "value") if key in given), FILLED[name])
            return aten.full.default, (list(value.shape), number), {"dtype": value.dtype, "device": value.device}
    return node.target, node.args, node.kwargs


def _with_elements(node: Node) -> list[Any]:
    """What `cat` puts together, without tensors that have no element, if the others alone give the same."""
    tensors: Any = node.args[0] if node.args else node.kwargs["tensors"]
    value = value_of(node)
    kept = [tensor for tensor in tensors if value_of(tensor).numel()]
    same = any(value_of(tensor).dtype == value.dtype for tensor in kept)
    return kept if same and value.numel() else list(tensors)


def _stacking(node: Node) -> int | None:
    """The dimension along which `hstack` and its kin put tensors that have it already."""
    tensors: Any = node.args[0]
    rank = min(value_of(tensor).dim() for tensor in tensors)
    if packet(node) == "hstack" and rank == 1:
        return 0
    dim = {"vstack": 0, "row_stack": 0, "dstack": 2}.get(packet(node), 1)
    return dim if rank > max(dim, 1) else None


def _order(node: Node) -> list[int]:
    """The permutation of `movedim` or `numpy_T`."""
    rank = value_of(node).dim()
    if packet(node) == "numpy_T":
        return list(reversed(range(rank)))
    given: Any = node.args[1:3]
    moved = [[d % rank for d in (dims if isinstance(dims, Sequence) else [dims])] for dims in given]
    source_of = dict(zip(moved[1], moved[0], strict=True))
    others = iter(d for d in range(rank) if d not in moved[0])
    return [source_of[d] if d in source_of else next(others) for d in range(rank)]


def twin(target: Any, written: str) -> Any:
    """The plain operator of an in-place one, or of one with `out`; None where there is none."""
    names = [parameter.name for parameter in target._schema.arguments]
    if written != "out":
        name, variant = target._overloadpacket.__name__, target._overloadname
        plain_name = {"normal_": "normal_functional"}.get(name, name.removesuffix("_"))
        plain = getattr(getattr(torch.ops, target.namespace), plain_name, None)
        found = getattr(plain, "p" if (name, variant) == ("bernoulli_", "float") else variant, None)
        return found if written == names[0] and plain is not target._overloadpacket else None
    overloads = [getattr(target._overloadpacket, name) for name in target._overloadpacket.overloads()]
    wanted = [name for name in names if name != "out"]
    return next((o for o in overloads if [p.name for p in o._schema.arguments] == wanted), None)


# The parts of a tensor, of several results the one of an index: source, operator and other arguments.


def _split(whole: Node, index: int) -> tuple[Node, Any, dict[str, Any]]:
    source, parts = whole.args[0], whole.meta["val"]
    assert isinstance(source, Node)
    dims = {"hsplit": min(1, value_of(source).dim() - 1), "vsplit": 0, "dsplit": 2}
    dim = named(whole.target, whole.args, whole.kwargs).get("dim", dims.get(packet(whole)))
    start = sum(part.shape[dim] for part in parts[:index])
    return source, aten.slice.Tensor, {"dim": dim, "start": start, "end": start + parts[index].shape[dim], "step": 1}


def _unbind(whole: Node, index: int) -> tuple[Node, Any, dict[str, Any]]:
    source = whole.args[0]
    assert isinstance(source, Node)
    return source, aten.select.int, {"dim": named(whole.target, whole.args, whole.kwargs)["dim"], "index": index}


def _broadcast(whole: Node, index: int) -> tuple[Node, Any, dict[str, Any]]:
    source = whole.args[0][index]  # type: ignore[index]
    assert isinstance(source, Node)
    shape = list(whole.meta["val"][index].shape)
    return source, None if list(value_of(source).shape) == shape else aten.expand.default, {"size": shape}


PARTS = {
    **dict.fromkeys(
        (
            "split",
            "split_with_sizes",
            "chunk",
            "tensor_split",
            "unsafe_split",
            "unsafe_chunk",
            "hsplit",
            "vsplit",
            "dsplit",
        ),
        _split,
    ),
    "unbind": _unbind,
    "broadcast_tensors": _broadcast,
}
