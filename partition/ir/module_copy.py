"""Deep copies of modules, which share what Python cannot copy: locks, modules of Python, loggers, open files."""

import copy
import copyreg
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ...errors import BadInput

_get_state, _set_state = nn.Module.__getstate__, nn.Module.__setstate__
_WITHOUT_PARTS = (type(None), bool, int, float, str)
_CONTAINERS = (OrderedDict, dict, list, set)


def copy_module(module: nn.Module, memo: Mapping[int, Any] | None = None) -> nn.Module:
    """Return a deep copy of a module; what it holds that cannot be copied is shared with it, the smallest part of it.

    memo: copies by the id of what they are copies of, as for `copy.deepcopy`.
    """
    memo = memo or {}
    copied: nn.Module
    try:
        copied = _DeepCopy(memo).make(module)
    except Exception:  # whatever a class of the user raises
        copied = copy.deepcopy(module, {**memo, **_find_shared(module, memo)})
    return copied


class _DeepCopy:
    """Does what `copy.deepcopy` does, in its order, in less time: most of what a module holds has no parts."""

    def __init__(self, memo: Mapping[int, Any]) -> None:
        self._memo = dict(memo)
        self._kinds: dict[Any, bool] = {}  # of modules: whether they are copied as modules are by default

    def make(self, value: Any) -> Any:
        """Return the copy of a value."""
        memo, kind = self._memo, type(value)
        if id(value) in memo:
            return memo[id(value)]
        if kind in _WITHOUT_PARTS:
            return value
        if kind in _CONTAINERS and not value:  # a dozen in each module
            memo[id(value)] = kind()
            return memo[id(value)]
        if kind is dict and all(type(name) is str for name in value):  # of parameters, buffers and modules
            copied = memo[id(value)] = dict[str, Any]()
            copied.update((name, self.make(part)) for name, part in value.items())
            return copied
        if isinstance(value, nn.Module) and self._is_copied_by_default(value):
            memo[id(value)] = object.__new__(kind)
            attributes = {name: self.make(held) for name, held in _get_state(value).items()}  # type: ignore[no-untyped-call]
            _set_state(memo[id(value)], attributes)  # type: ignore[no-untyped-call]
            return memo[id(value)]
        return copy.deepcopy(value, memo)

    def _is_copied_by_default(self, module: nn.Module) -> bool:
        kind: Any = type(module)
        if kind not in self._kinds:
            self._kinds[kind] = _says_nothing_of_copies(kind)
        return self._kinds[kind] and getattr(module, "__deepcopy__", None) is None


def _says_nothing_of_copies(kind: type[nn.Module]) -> bool:
    """Whether a class has all that it holds in its `__dict__`, which is copied as that of any module."""
    by_default = (
        kind.__new__ is object.__new__,
        kind.__setstate__ is _set_state,
        kind.__getstate__ is _get_state,
        *(getattr(kind, name) is getattr(object, name) for name in ("__reduce_ex__", "__reduce__")),
        not any(hasattr(kind, name) for name in ("__getnewargs__", "__getnewargs_ex__")),
        not any(vars(base).get("__slots__") for base in kind.__mro__),
        kind not in copyreg.dispatch_table,
    )
    return all(by_default)


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
