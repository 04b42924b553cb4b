"""Operator arguments as plain data, so that a graph can be hashed, saved and sent.

A tensor is {"tensor": name}. Dtypes, devices and memory formats are named, and so are complex numbers, infinity and
NaN, which JSON does not have. The trace's device is not kept: what was captured on meta runs on the CPU.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from ...errors import BadInput


def bind_arguments(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of an operator by their names in its schema, defaults filled in."""
    schema = overload._schema.arguments
    bound = {parameter.name: value for parameter, value in zip(schema, args, strict=False)} | dict(kwargs)
    return {p.name: bound.get(p.name, p.default_value) for p in schema}


def encode(arguments: Mapping[str, Any], tensor: Callable[[Node], str]) -> dict[str, Any]:
    """Return arguments as plain data; nodes become tensors, whose names `tensor` returns. Raises BadInput (E323)."""
    return {name: _encode(value, tensor) for name, value in arguments.items()}


def _encode(value: Any, tensor: Callable[[Node], str]) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return {"number": str(value)}
        case complex():
            return {"complex": str(value)}
        case None | bool() | int() | float() | str():
            return value
        case Node():
            return {"tensor": tensor(value)}
        case list() | tuple():
            return [_encode(item, tensor) for item in value]
        case torch.dtype() | torch.memory_format() | torch.layout():
            return {type(value).__name__: str(value).removeprefix("torch.")}
        case torch.device():
            return {"device": "cpu"}
    raise BadInput("E323", f"an operator argument of type {type(value).__name__} cannot be planned: {value!r}")


def decode(value: Any, tensor: Callable[[str], Any]) -> Any:
    """Return the inverse of `encode` for one value; `tensor` returns the tensor of a name."""
    if isinstance(value, list):
        return [decode(item, tensor) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, name),) = value.items()
    if kind == "tensor":
        return tensor(name)
    if kind == "number":
        return float(name)
    if kind == "complex":
        return complex(name)
    return torch.device(name) if kind == "device" else getattr(torch, name)


def find_tensors(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of an operator's tensors by argument, "tensors[1]" inside a list."""
    tensors: dict[str, str] = {}
    for name, value in arguments.items():
        if isinstance(value, dict):
            if "tensor" in value:
                tensors[name] = value["tensor"]
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, dict) and "tensor" in item:
                    tensors[f"{name}[{index}]"] = item["tensor"]
    return tensors


def rename_tensors(value: Any, names: Mapping[str, str]) -> Any:
    """Return arguments, or a value in them, with other names for some tensors."""
    if isinstance(value, list):
        return [rename_tensors(item, names) for item in value]
    if isinstance(value, dict):
        if isinstance(value.get("tensor"), str) and len(value) == 1:
            return {"tensor": names.get(value["tensor"], value["tensor"])}
        return {name: rename_tensors(item, names) for name, item in value.items()}
    return value


@functools.cache
def find_overload(target: str) -> Any:
    """Return the torch operator of a name such as "aten.linear.default"."""
    namespace, name, variant = target.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), variant)


@functools.cache
def list_parameters(target: str) -> tuple[Any, tuple[str, ...], tuple[str, ...]]:
    """Return the torch operator of a name, with the names of its positional and of its keyword-only parameters."""
    operator = find_overload(target)
    schema = operator._schema.arguments
    positional = tuple(p.name for p in schema if not p.kwarg_only)
    return operator, positional, tuple(p.name for p in schema if p.kwarg_only)


def call_operator(target: str, arguments: Mapping[str, Any]) -> Any:
    """Run an operator with all its arguments by name."""
    operator, positional, keywords = list_parameters(target)
    return operator(*[arguments[name] for name in positional], **{name: arguments[name] for name in keywords})
