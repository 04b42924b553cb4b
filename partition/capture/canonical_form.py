"""The canonical form of an exported operator: one name where torch has several, and nothing read for its shape only.

Here are also the operators whose results are parts of one tensor, and the functional twins of in-place operators.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..draft.draft import has_fixed_size
from ..ir.arguments import bind_arguments
from ..trace.grouped_products import GROUPED_STANDS_FOR
from ..trace.recurrent_stand_ins import STANDS_FOR

aten = torch.ops.aten
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]  # operator, arguments in order and by name

# Nothing is left of what these operators overwrite, and no gradient flows to it.
# fmt: off
PAINTING = (
    "normal_", "uniform_", "exponential_", "bernoulli_", "random_", "log_normal_", "cauchy_", "geometric_", "zero_",
)
# fmt: on


def traced_value(node: Node) -> Tensor:
    """Return the tensor that the trace has for a node, without its values."""
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value


def is_dynamic(node: Node) -> bool:
    """Whether what a node returns or reads has a size, or a number, that depends on data."""
    values = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
    leaves = [leaf for value in values for leaf in (value if isinstance(value, tuple | list) else [value])]
    return any(not has_fixed_size(leaf) if isinstance(leaf, Tensor) else isinstance(leaf, SYMBOLIC) for leaf in leaves)


def operator_name(node: Node) -> str:
    """Return an operator's name without namespace and overload; "" where the node is no operator."""
    return getattr(getattr(node.target, "_overloadpacket", None), "__name__", "")


# What these operators fill a tensor with; None where an argument says it.
FILL_VALUES = {
    **dict.fromkeys(("zeros_like", "new_zeros", "zero"), 0),
    **dict.fromkeys(("ones_like", "new_ones"), 1),
    **dict.fromkeys(("full_like", "new_full"), None),
}


def canonicalise(node: Node) -> Call:
    """Return the operator and the arguments of a node in canonical form.

    What has a dynamic size is never cut, so that its operator may stay as it is, but that a view may need a copy.
    """
    if node.target in GROUPED_STANDS_FOR or is_dynamic(node):
        return _REAL_OPERATORS.get(node.target, node.target), node.args, node.kwargs  # type: ignore[call-overload]
    first, rest = (node.args[0], node.args[1:]) if node.args else (None, ())
    match operator_name(node):
        case "view" | "_unsafe_view" | "view_as" | "reshape_as" | "ravel" if node.target is not aten.view.dtype:
            # The local tensor may be laid out in another way, and then needs a copy.
            return aten.reshape.default, (first, list(traced_value(node).shape)), {}
        case "expand_as":
            return aten.expand.default, (first, list(traced_value(node).shape)), {}
        case "type_as":
            return aten.to.dtype, (first, traced_value(node).dtype), {}
        case "swapaxes" | "swapdims":
            return aten.transpose.int, (first, *rest), node.kwargs
        case "mT":
            return aten.transpose.int, (first, -2, -1), {}
        case "numpy_T" | "movedim" | "moveaxis":
            return aten.permute.default, (first, _permutation(node)), {}
        case "narrow" if isinstance(node.args[2], int):
            dim, start, length = rest
            return aten.slice.Tensor, (first, dim, start, start + length), {}  # type: ignore[operator]
        case "hstack" | "vstack" | "dstack" | "column_stack" | "row_stack" if _stacking_dim(node) is not None:
            return aten.cat.default, (_nonempty_tensors(node), _stacking_dim(node)), {}
        case "atleast_1d" | "atleast_2d" | "atleast_3d" if isinstance(first, Node):
            return aten.reshape.default, (first, list(traced_value(node).shape)), {}
        case "empty_like" | "new_empty":
            value = traced_value(node)
            return aten.empty.memory_format, (list(value.shape),), {"dtype": value.dtype, "device": value.device}
        case "cat" | "concat" | "concatenate":
            return aten.cat.default, (_nonempty_tensors(node), *rest), node.kwargs
        case "max" | "min" if "other" in [parameter.name for parameter in node.target._schema.arguments]:  # type: ignore[union-attr]
            return getattr(aten, f"{operator_name(node)}imum").default, node.args, node.kwargs
        case name if name in FILL_VALUES:
            value = traced_value(node)
            arguments = bind_arguments(node.target, node.args, node.kwargs)
            number = next((arguments[key] for key in ("fill_value", "value") if key in arguments), FILL_VALUES[name])
            return aten.full.default, (list(value.shape), number), {"dtype": value.dtype, "device": value.device}
    return node.target, node.args, node.kwargs


_REAL_OPERATORS = {
    **STANDS_FOR,
    **GROUPED_STANDS_FOR,
    aten.view.default: aten.reshape.default,
    aten._unsafe_view.default: aten.reshape.default,
}


def _nonempty_tensors(node: Node) -> list[Any]:
    """Return what `cat` puts together, without tensors that have no element, if the others alone give the same."""
    tensors: Any = node.args[0] if node.args else node.kwargs["tensors"]
    value = traced_value(node)
    kept = [tensor for tensor in tensors if traced_value(tensor).numel()]
    same = any(traced_value(tensor).dtype == value.dtype for tensor in kept)
    return kept if same and value.numel() else list(tensors)


def _stacking_dim(node: Node) -> int | None:
    """Return the dimension along which `hstack` and its kin concatenate tensors that have it already, else None."""
    tensors: Any = node.args[0]
    rank = min(traced_value(tensor).dim() for tensor in tensors)
    if operator_name(node) == "hstack" and rank == 1:
        return 0
    dim = {"vstack": 0, "row_stack": 0, "dstack": 2}.get(operator_name(node), 1)
    return dim if rank > max(dim, 1) else None


def _permutation(node: Node) -> list[int]:
    """Return the permutation of `movedim` or `numpy_T`."""
    rank = traced_value(node).dim()
    if operator_name(node) == "numpy_T":
        return list(reversed(range(rank)))
    dimensions: Any = node.args[1:3]
    sources, targets = [[d % rank for d in (dims if isinstance(dims, Sequence) else [dims])] for dims in dimensions]
    source_of = dict(zip(targets, sources, strict=True))
    others = iter(d for d in range(rank) if d not in sources)
    return [source_of[d] if d in source_of else next(others) for d in range(rank)]


def find_functional_twin(target: Any, written: str) -> Any:
    """Return the functional operator of an in-place one, or of one with `out`; None where there is none."""
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


# Operators whose results are parts of one tensor: for one result its source, the operator that makes it of that, and
# the operator's other arguments.


def _split(whole: Node, index: int) -> tuple[Node, Any, dict[str, Any]]:
    source, parts = whole.args[0], whole.meta["val"]
    assert isinstance(source, Node)
    dims = {"hsplit": min(1, traced_value(source).dim() - 1), "vsplit": 0, "dsplit": 2}
    dim = bind_arguments(whole.target, whole.args, whole.kwargs).get("dim", dims.get(operator_name(whole)))
    start = sum(part.shape[dim] for part in parts[:index])
    return source, aten.slice.Tensor, {"dim": dim, "start": start, "end": start + parts[index].shape[dim], "step": 1}


def _unbind(whole: Node, index: int) -> tuple[Node, Any, dict[str, Any]]:
    source = whole.args[0]
    assert isinstance(source, Node)
    dim = bind_arguments(whole.target, whole.args, whole.kwargs)["dim"]
    return source, aten.select.int, {"dim": dim, "index": index}


def _broadcast(whole: Node, index: int) -> tuple[Node, Any, dict[str, Any]]:
    source = whole.args[0][index]  # type: ignore[index]
    assert isinstance(source, Node)
    shape = list(whole.meta["val"][index].shape)
    return source, None if list(traced_value(source).shape) == shape else aten.expand.default, {"size": shape}


SPLITTERS = {
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk"), _split),
    **dict.fromkeys(("hsplit", "vsplit", "dsplit"), _split),
    "unbind": _unbind,
    "broadcast_tensors": _broadcast,
}
