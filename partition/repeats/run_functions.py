"""Finds the function objects whose code a layer runs, since they may hold values: defaults, attributes, closures."""

from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from .frozen_value import CannotFreeze


def find_functions(module: nn.Module, code: Mapping[CodeType, Mapping[str, Any]]) -> list[FunctionType]:
    """Return the functions of some code, given with its globals; raise CannotFreeze where one is not found.

    What a function defines within itself is made anew by every call, and left out.
    """
    inner = {id(const) for one in code for const in _list_inner_code(one)}
    wanted = [one for one in code if id(one) not in inner]
    found = {id(function.__code__): function for function in _list_methods(module)}
    for one in wanted:
        for value in _look_up(one, code[one]):
            for function in _unwrap(value, 0):
                found.setdefault(id(function.__code__), function)
    missing = next((one for one in wanted if id(one) not in found), None)
    if missing is not None:
        raise CannotFreeze(f"{missing.co_qualname} was not found")
    return [found[id(one)] for one in wanted]


def _list_inner_code(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _list_inner_code(const)


def _list_methods(module: nn.Module) -> Iterator[FunctionType]:
    kinds = dict.fromkeys(kind for inner in module.modules() for kind in type(inner).__mro__)
    for kind in kinds:
        for value in vars(kind).values():
            yield from _unwrap(value, 0)


def _look_up(code: CodeType, space: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what stands under the qualified name of a function, and under the names in its file that lead to it."""
    first, *rest = code.co_qualname.split(".")
    value = space.get(first)
    for name in rest:
        value = vars(value).get(name) if isinstance(value, type) else None
    yield value
    yield from (other for other in space.values() if isinstance(other, FunctionType) or hasattr(other, "__wrapped__"))


def _unwrap(value: Any, depth: int) -> Iterator[FunctionType]:
    """Yield a function and those that it wraps."""
    if depth > 4:
        return
    if isinstance(value, FunctionType):
        yield value
        for cell in value.__closure__ or ():
            try:
                yield from _unwrap(cell.cell_contents, depth + 1)
            except ValueError:  # an empty cell
                continue
    for name in ("__func__", "fget", "__wrapped__"):
        inner = getattr(value, name, None) if not isinstance(value, type) else None
        if inner is not None:
            yield from _unwrap(inner, depth + 1)
