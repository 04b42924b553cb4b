"""Deep copies of modules, which share what Python cannot copy: locks, modules of Python, loggers, open files."""

import copy
from collections import deque
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ...errors import BadInput


def copy_module(module: nn.Module, memo: Mapping[int, Any] | None = None) -> nn.Module:
    """Return a deep copy of a module; what it holds that cannot be copied is shared with it, the smallest part of it.

    memo: copies by the id of what they are copies of, as for `copy.deepcopy`.
    """
    memo = memo or {}
    try:
        return copy.deepcopy(module, dict(memo))
    except Exception:  # whatever a class of the user raises
        return copy.deepcopy(module, {**memo, **_find_shared(module, memo)})


def _find_shared(module: nn.Module, memo: Mapping[int, Any]) -> dict[int, Any]:
    """Return what cannot be copied within a module, by id; BadInput where that is a module."""
    # Tensors are left out, so that no weight is copied in the search.
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    names = {id(inner): name for name, inner in module.named_modules()}
    known, shared, visited = {**tensors, **memo}, dict[int, Any](), list[Any]()

    def find_failure(value: Any) -> Exception | None:
        try:
            copy.deepcopy(value, {**known, **shared})
        except Exception as error:
            return error
        return None

    def search(value: Any) -> None:
        if find_failure(value) is None or any(value is other for other in visited):
            return
        visited.append(value)  # which keeps it, so that nothing else gets its id
        for part in _list_parts(value):
            search(part)
        failure = find_failure(value)
        if failure is None:
            return
        if isinstance(value, nn.Module):
            name = names.get(id(value)) or "(model)"
            facts = f"module {name} ({type(value).__name__}) cannot be copied: {failure}"
            raise BadInput("E320", facts, fix="make what it holds in forward, or give the module a __deepcopy__")
        shared[id(value)] = value

    search(module)
    return shared


def _list_parts(value: Any) -> list[Any]:
    """Return what a deep copy of a value would copy, one level deep."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return list(value)
    if isinstance(value, nn.Module):
        return list(vars(value).values())
    try:
        reduced = () if isinstance(value, Tensor) else value.__reduce_ex__(4)
    except Exception:
        return []
    if not isinstance(reduced, tuple) or not reduced:  # a string names a global, which is not copied
        return []
    parts: list[Any] = [*reduced[1:5], *[None] * (5 - len(reduced))]
    made, state, items, pairs = parts
    return [*made, state, *(items or ()), *(part for pair in pairs or () for part in pair)]
