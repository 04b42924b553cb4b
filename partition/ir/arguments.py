"""Operator arguments as plain data, so that a graph can be hashed, saved and sent.

A tensor is {"tensor": name}; dtypes, devices and memory formats are named, and so are infinity and NaN, which JSON does
not have. Devices of the trace are not kept: what was captured on meta runs on the CPU.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from ...errors import BadInput


def named(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of an operator by the name that its schema gives, defaults filled in."""
    schema = overload._schema.arguments
    given = {parameter.name: value for parameter, value in zip(schema, args, strict=False)} | dict(kwargs)
    return {p.name: given.get(p.name, p.default_value) for p in schema}


def encode(arguments: Mapping[str, Any], tensor: Callable[[Node], str]) -> dict[str, Any]:
    """Arguments as plain data; graph nodes become tensors, whose names `tensor` gives."""
    return {name: _encode(value, tensor) for name, value in arguments.items()}


def _encode(value: Any, tensor: Callable[[Node], str]) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return {"number": str(value)}
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
    """The inverse of `encode`, for one value; `tensor` gives the tensor of a name."""
    if isinstance(value, list):
        return [decode(item, tensor) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, name),) = value.items()
    if kind == "tensor":
        return tensor(name)
    if kind == "number":
        return float(name)
    return torch.device(name) if kind == "device" else getattr(torch, name)


def tensors_in(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Tensor names by argument, "tensors[1]" inside a list."""
    found: dict[str, str] = {}
    for name, value in arguments.items():
        items = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, item in items:
            if isinstance(item, dict) and "tensor" in item:
                found[name if index is None else f"{name}[{index}]"] = item["tensor"]
    return found


@functools.cache
def overload(target: str) -> Any:
    """The torch operator of a name such as "aten.linear.default"."""
    namespace, name, variant = target.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), variant)


def call(target: str, arguments: Mapping[str, Any]) -> Any:
    """Run an operator with all its arguments by name."""
    operator = overload(target)
    schema = operator._schema.arguments
    positional = [arguments[p.name] for p in schema if not p.kwarg_only]
    return operator(*positional, **{p.name: arguments[p.name] for p in schema if p.kwarg_only})
