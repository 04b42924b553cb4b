"""Deep copies of modules, which share what Python cannot copy: locks, modules of Python, loggers, open files."""

import copy
import copyreg
import functools
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ...errors import BadInput

_get_state = nn.Module.__getstate__
_WITHOUT_PARTS = (type(None), bool, int, float, str)
_CONTAINERS = (OrderedDict, dict, list, set)


def copy_module(module: nn.Module, memo: Mapping[int, Any] | None = None) -> nn.Module:
    """Return a deep copy of a module; what it holds that cannot be copied is shared with it, the smallest part of it.

    memo: copies by the id of what they are copies of, as for `copy.deepcopy`.
    """
    memo = memo or {}
    try:
        return _copy_deeply(module, dict(memo))
    except Exception:  # whatever a class of the user raises
        return _copy_deeply(module, {**memo, **_find_shared(module, memo)})


def _copy_deeply(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Do what `copy.deepcopy` does, in less time: most of what a module holds is known to have no parts."""
    kinds: list[tuple[nn.Module, Any]] = [(inner, type(inner)) for inner in module.modules() if id(inner) not in memo]
    plain = [inner for inner, kind in kinds if _is_copied_by_attributes(kind)]
    memo |= {id(inner): object.__new__(type(inner)) for inner in plain}
    for inner in reversed(plain):  # those within a module first, as a class may look at what is copied already
        attributes = {name: _copy_attribute(value, memo) for name, value in _get_state(inner).items()}  # type: ignore[no-untyped-call]
        nn.Module.__setstate__(memo[id(inner)], attributes)  # type: ignore[no-untyped-call]
    copied: nn.Module = copy.deepcopy(module, memo)
    return copied


@functools.cache
def _is_copied_by_attributes(kind: type[nn.Module]) -> bool:
    """Whether a class says nothing on how it is copied, and has all that it holds in its `__dict__`."""
    by_default = (
        kind.__new__ is object.__new__,
        kind.__setstate__ is nn.Module.__setstate__,
        kind.__getstate__ is _get_state,
        *(getattr(kind, name) is getattr(object, name) for name in ("__reduce_ex__", "__reduce__")),
        not any(hasattr(kind, name) for name in ("__deepcopy__", "__getnewargs__", "__getnewargs_ex__")),
        not any(vars(base).get("__slots__") for base in kind.__mro__),
        kind not in copyreg.dispatch_table,
    )
    return all(by_default)


def _copy_attribute(value: Any, memo: dict[int, Any]) -> Any:
    if id(value) in memo:
        return memo[id(value)]
    kind = type(value)
    if kind in _WITHOUT_PARTS:
        return value
    if kind in _CONTAINERS and not value:  # a dozen in each module
        memo[id(value)] = kind()
        return memo[id(value)]
    if kind is dict and all(type(name) is str for name in value):  # of parameters, buffers and modules
        copied = memo[id(value)] = dict[str, Any]()
        copied.update((name, _copy_attribute(part, memo)) for name, part in value.items())
        return copied
    return copy.deepcopy(value, memo)


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
