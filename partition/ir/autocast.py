"""What `torch.autocast` casts, as casts that a graph can hold: torch itself is asked, operator by operator.

A trace has the operators before their operands are cast. Each is therefore run once more without data, in autocast
and watched from below, where casts are operators like others.
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

_Run = list[tuple[str, list[torch.dtype], list[torch.dtype]]]  # operators with the dtypes that they read and make
_CAST = torch.ops.aten._to_copy.default
_COPIES = (torch.ops.aten.clone.default, torch.ops.aten._unsafe_view.default)


def autocast(dtype: str, *, cached: bool = True) -> AbstractContextManager[Any]:
    """`torch.autocast` on the CPU in a dtype ("bfloat16"), or nothing where "". cached: it remembers cast weights."""
    if not dtype:
        return nullcontext()
    if dtype not in DTYPES:
        raise UsageError("E219", f"no autocast in {dtype!r}; there are {', '.join(DTYPES)}", fix="--autocast bfloat16")
    return torch.autocast("cpu", dtype=getattr(torch, dtype), cache_enabled=cached)


def autocast_now() -> str:
    """The dtype of the autocast that is on here, "" where none is."""
    if not torch.is_autocast_enabled("cpu"):
        return ""
    return str(torch.get_autocast_dtype("cpu")).removeprefix("torch.")


def autocast_depth() -> int:
    """How many autocasts are entered here, one within the other."""
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


def casts(node: Node, dtype: torch.dtype) -> dict[Node, torch.dtype] | None:
    """The operands of an operator that autocast in `dtype` casts, and to what.

    None where casts of its operands do not say it all, as of an LSTM, whose state is of another dtype in every step.
    """
    inputs = [n for n in node.all_input_nodes if _floating(n.meta.get("val"))]
    if not inputs or not _affected(node):
        return {}
    given = {n: n.meta["val"] for n in node.all_input_nodes}
    wanted, seen = _watched(node, given, dtype)
    positions = {id(tensor): n for n, tensor in given.items()}
    found = {positions[at]: to for at, to in seen.items() if at in positions}
    every: list[dict[Node, torch.dtype]] = [dict.fromkeys(inputs, to) for to in (dtype, torch.float32)]
    for tried in ({}, found, *every):
        if _runs(node, given, tried) == wanted:
            return {n: to for n, to in tried.items() if given[n].dtype != to}
    return None


@torch.no_grad()
def _runs(node: Node, given: Mapping[Node, Any], tried: Mapping[Node, torch.dtype]) -> _Run | None:
    """What an operator runs on cast operands without autocast; None where it does not take such."""
    cast = {n: tensor.to(tried[n]) if n in tried else tensor for n, tensor in given.items()}
    try:
        return _watched(node, cast, None)[0]
    except (RuntimeError, TypeError, ValueError):
        return None


def _floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _affected(node: Node) -> bool:
    """Whether autocast knows the operator, or may know one of those that it is made of."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    name = node.target.name()  # type: ignore[union-attr]
    return any(has(name, key) for key in ("AutocastCPU", "CompositeImplicitAutograd"))


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what is run. cast: by the id of a tensor, the dtype that it was first cast to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.run: _Run = []
        self.cast: dict[int, torch.dtype] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is _CAST:
            self.cast.setdefault(id(args[0]), made.dtype)
        elif _computes(func):
            self.run.append((str(func), _dtypes((args, kwargs)), _dtypes(made)))
        return made


def _computes(func: Any) -> bool:
    """Whether an operator does more than to show or copy values, or to ask for a device."""
    shows = any(returned.alias_info is not None for returned in func._schema.returns)
    return func.namespace != "prim" and func not in _COPIES and not shows


def _dtypes(values: Any) -> list[torch.dtype]:
    return [leaf.dtype for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _watched(node: Node, given: Mapping[Node, Any], dtype: torch.dtype | None) -> tuple[_Run, dict[int, torch.dtype]]:
    """What an operator runs and casts, in autocast or without."""
    args, kwargs = tree_map(lambda leaf: given[leaf] if isinstance(leaf, Node) else leaf, (node.args, node.kwargs))
    within = torch.autocast("cpu", dtype=dtype, enabled=dtype is not None, cache_enabled=False)
    with torch.no_grad(), _Watch() as watch, within:
        node.target(*args, **kwargs)  # type: ignore[operator]
    return watch.run, watch.cast
