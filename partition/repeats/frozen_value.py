"""Python values in a form that can be compared later: what is plain by its value, what cannot change by its identity.

Containers and objects are followed to all that they hold. What may change unseen - an iterator, say - cannot be frozen.
"""

import functools
import logging
import math
import re
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

MAX_VALUES = 4000  # in one value
_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    type(NotImplemented),
    range,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_PLAIN_KINDS = frozenset(_PLAIN)
_FIXED = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.GenericAlias,
    types.UnionType,
    property,
    staticmethod,
    classmethod,
    re.Pattern,
    logging.Logger,
    logging.LoggerAdapter,
    Tensor,  # what is written into one is seen by the trace
    Enum,
)
_SEQUENCES = (list, tuple, deque, torch.Size)
_MAPPINGS = (dict, OrderedDict, types.MappingProxyType)


class CannotFreeze(Exception):  # noqa: N818  # it is no failure: the value is then taken for a changing one
    """A value may change unseen."""


class Identity:
    """An object that equals itself alone. It is kept alive, so that no other gets its id."""

    __slots__ = ("_object",)

    def __init__(self, value: object) -> None:
        self._object = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._object is other._object

    def __hash__(self) -> int:
        return id(self._object)


class Freezer:
    """Freezes values. paths: of modules by id, which stand for modules wherever they are found.

    describe: says what a tensor is; objects are then compared by what they hold, since each step may make its own. By
    default both equal themselves alone.
    """

    def __init__(self, paths: Mapping[int, str], *, describe: Callable[[Tensor], Hashable] | None = None) -> None:
        self._paths, self._describe = paths, describe
        self._met: dict[int, int] = {}  # numbers by id, so that a value within itself ends
        self._alive: list[object] = []

    def freeze(self, value: Any) -> Hashable:
        """Return a value that can be compared; raise CannotFreeze where that would not show all changes."""
        kind = type(value)
        if kind in _PLAIN_KINDS:
            if kind is float and (math.isnan(value) or value == 0):
                return kind, repr(value)
            return kind, value
        if isinstance(value, nn.Module):
            path = self._paths.get(id(value))
            return Identity(value) if path is None else ("module", path)
        if self._describe is not None and isinstance(value, Tensor):
            return self._describe(value)
        if isinstance(value, functools._lru_cache_wrapper):
            known = value.cache_info()
            return Identity(value), known.misses, known.currsize
        if _is_fixed(kind):
            return Identity(value)
        if id(value) in self._met:
            return "met", self._met[id(value)]
        self._met[id(value)] = len(self._met)
        self._alive.append(value)
        if len(self._met) > MAX_VALUES:
            raise CannotFreeze(f"it holds more than {MAX_VALUES} values")
        return self._freeze_held(value, kind)

    def _freeze_held(self, value: Any, kind: type) -> Hashable:
        """Freeze a value that holds others."""
        if kind in _SEQUENCES:
            return kind, tuple(map(self.freeze, value))
        if kind in _MAPPINGS:
            return kind, tuple((self.freeze(key), self.freeze(one)) for key, one in value.items())
        if kind in (set, frozenset):
            return kind, frozenset(map(self.freeze, value))
        if isinstance(value, types.MethodType):
            return "method", self.freeze(value.__func__), self.freeze(value.__self__)
        if isinstance(value, functools.partial):
            return "partial", self.freeze(value.func), self.freeze(value.args), self.freeze(value.keywords)
        if kind.__module__ == "numpy":
            raise CannotFreeze("numpy changes it unseen")
        held = getattr(value, "__dict__", None)
        if held is None or any("__slots__" in vars(one) and vars(one)["__slots__"] for one in kind.__mro__[:-1]):
            raise CannotFreeze(f"{kind.__name__} shows nothing of what it holds")
        inside: list[Hashable] = [(name, self.freeze(one)) for name, one in held.items()]
        of_classes = [(name, one) for base in kind.__mro__ for name, one in vars(base).items() if name not in held]
        inside += [(name, self.freeze(one)) for name, one in of_classes if name[:2] != "__" and _may_change(type(one))]
        for base, items in ((Mapping, "items"), ((list, tuple, set, frozenset, deque), "__iter__")):
            if isinstance(value, base):
                inside += [self.freeze(one) for one in getattr(value, items)()]
        # What two objects do may differ in more than in what they hold.
        return Identity(value) if self._describe is None else kind, tuple(inside)


def _ask_once(judge: Callable[[type[object]], bool]) -> Callable[[type[object]], bool]:
    """Remember what is said of a class as long as there is one: it is asked for thousands of values, of few classes."""
    known = weakref.WeakKeyDictionary[type[object], bool]()

    @functools.wraps(judge)
    def ask(kind: type[object]) -> bool:
        if kind not in known:
            known[kind] = judge(kind)
        return known[kind]

    return ask


@_ask_once
def _is_fixed(kind: type[object]) -> bool:
    """Whether objects of a class equal themselves alone."""
    return issubclass(kind, _FIXED) or kind.__module__.partition(".")[0] in ("torch", "typing", "typing_extensions")


@_ask_once
def _may_change(kind: type[object]) -> bool:
    """Whether what a class holds of a class is data, which code may exchange or change, and no part of it."""
    is_data = issubclass(kind, (*_PLAIN, *_SEQUENCES, *_MAPPINGS, set)) or hasattr(kind, "__next__")
    return is_data and not issubclass(kind, _FIXED)
