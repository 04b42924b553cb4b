"""Finds out what `torch.autocast` casts, operator by operator, so that a graph can hold the casts as operators.

A trace has the operators before their operands are cast. Each is therefore run once more without data, in autocast,
while a dispatch mode watches from below, where casts are operators like others.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ...errors import UsageError

DTYPES = ("bfloat16", "float16")

# Operators with the dtypes that they read and return.
_OperatorLog = list[tuple[str, list[torch.dtype], list[torch.dtype]]]
_CAST = torch.ops.aten._to_copy.default
_COPIES = (torch.ops.aten.clone.default, torch.ops.aten._unsafe_view.default)


def autocast_context(dtype: str, *, cached: bool = True) -> AbstractContextManager[Any]:
    """Return `torch.autocast` on the CPU in a dtype, "bfloat16" or "" for none. cached: cast weights once."""
    if not dtype:
        return nullcontext()
    if dtype not in DTYPES:
        raise UsageError("E219", f"no autocast in {dtype!r}; there are {', '.join(DTYPES)}", fix="--autocast bfloat16")
    return torch.autocast("cpu", dtype=getattr(torch, dtype), cache_enabled=cached)


def current_autocast() -> str:
    """Return the dtype of the autocast that is active, "" where none is."""
    if not torch.is_autocast_enabled("cpu"):
        return ""
    return str(torch.get_autocast_dtype("cpu")).removeprefix("torch.")


def autocast_depth() -> int:
    """Return how many autocasts are entered, one within the other."""
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


def find_casts(node: Node, dtype: torch.dtype) -> dict[Node, torch.dtype] | None:
    """Return the operands of an operator that autocast in `dtype` casts, and to what.

    None where casts of its operands are not all, as with an LSTM, whose state is of another dtype in every step.
    """
    inputs = [n for n in node.all_input_nodes if _is_floating(n.meta.get("val"))]
    if not inputs or not _is_affected(node):
        return {}
    operands = {n: n.meta["val"] for n in node.all_input_nodes}
    expected, seen = _watch(node, operands, dtype)
    node_of = {id(tensor): n for n, tensor in operands.items()}
    direct = {node_of[at]: to for at, to in seen.items() if at in node_of}
    all_alike: list[dict[Node, torch.dtype]] = [dict.fromkeys(inputs, to) for to in (dtype, torch.float32)]
    for casts in ({}, direct, *all_alike):
        if _run_with_casts(node, operands, casts) == expected:
            return {n: to for n, to in casts.items() if operands[n].dtype != to}
    return None


@torch.no_grad()
def _run_with_casts(node: Node, operands: Mapping[Node, Any], casts: Mapping[Node, torch.dtype]) -> _OperatorLog | None:
    """Return what an operator runs on cast operands without autocast; None where it refuses them."""
    cast = {n: tensor.to(casts[n]) if n in casts else tensor for n, tensor in operands.items()}
    try:
        return _watch(node, cast, None)[0]
    except (RuntimeError, TypeError, ValueError):
        return None


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _is_affected(node: Node) -> bool:
    """Whether autocast knows the operator, or may know one of those that it is made of."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    name = node.target.name()  # type: ignore[union-attr]
    return any(has(name, key) for key in ("AutocastCPU", "CompositeImplicitAutograd"))


class _RunRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records which operators run. cast: the dtype that a tensor was first cast to, by the tensor's id."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.run: _OperatorLog = []
        self.cast: dict[int, torch.dtype] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is _CAST:
            self.cast.setdefault(id(args[0]), result.dtype)
        elif _is_computation(func):
            self.run.append((str(func), _dtypes((args, kwargs)), _dtypes(result)))
        return result


def _is_computation(func: Any) -> bool:
    """Whether an operator does more than view or copy values, or ask for a device."""
    is_view = any(returned.alias_info is not None for returned in func._schema.returns)
    return func.namespace != "prim" and func not in _COPIES and not is_view


def _dtypes(values: Any) -> list[torch.dtype]:
    return [leaf.dtype for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _watch(
    node: Node, operands: Mapping[Node, Any], dtype: torch.dtype | None
) -> tuple[_OperatorLog, dict[int, torch.dtype]]:
    """Return what an operator runs and casts, in autocast or without."""
    args, kwargs = tree_map(lambda leaf: operands[leaf] if isinstance(leaf, Node) else leaf, (node.args, node.kwargs))
    within = torch.autocast("cpu", dtype=dtype, enabled=dtype is not None, cache_enabled=False)
    with torch.no_grad(), _RunRecorder() as watch, within:
        node.target(*args, **kwargs)  # type: ignore[operator]
    return watch.run, watch.cast
