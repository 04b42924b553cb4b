"""`OperatorCall`: one call of an operator as data, without the tensors, and how it is run on some.

Numbers are of double precision, whatever they are in the model, so that a difference is more than rounding.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..ir.arguments import call_operator, decode
from ..operators.sharding.signature import DraftTensor

WIDER = {"complex64": "complex128", "complex32": "complex128"} | dict.fromkeys(
    ("float16", "bfloat16", "float32"), "float64"
)
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class OperandSpec:
    """One tensor among the arguments: its name, as of `ir.arguments.find_tensors`, its shape and its dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def probe_dtype(self) -> torch.dtype:
        """The dtype in which it is made up."""
        dtype: torch.dtype = getattr(torch, WIDER.get(self.dtype, self.dtype))
        return dtype


@dataclass(frozen=True)
class PlainSize:
    """An argument that is a number, at a place of a list, which is the size of a dimension of the output."""

    argument: str
    place: int


@dataclass(frozen=True)
class OperatorCall:
    """One call. arguments: JSON of the plain arguments, in which a tensor goes by the name of its operand.

    output: the shape of the result that is meant, of which the argument "@output" tells where there are several.
    """

    target: str
    arguments: str
    operands: tuple[OperandSpec, ...]
    output: tuple[int, ...]

    @cached_property
    def _decoded(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.arguments)
        return loaded

    @property
    def plain(self) -> Mapping[str, Any]:
        """The arguments as plain data."""
        return self._decoded

    def shaped(self, sizes: Mapping[int, int]) -> "OperatorCall":
        """Return the same call with other sizes of dimensions, by their present sizes."""
        operands = (replace(o, shape=tuple(sizes.get(n, n) for n in o.shape)) for o in self.operands)
        return replace(self, operands=tuple(operands), output=tuple(sizes.get(n, n) for n in self.output))

    def run(self, tensors: Tensors, sizes: Mapping[PlainSize, int] | None = None) -> Tensor:
        """Run torch's operator; raise what it raises. sizes: other values of plain sizes."""
        arguments = {name: decode(value, tensors.__getitem__) for name, value in self._decoded.items()}
        for at, size in (sizes or {}).items():
            arguments[at.argument][at.place] = size
        result = call_operator(self.target, arguments)
        tensor: Tensor = result if "@output" not in arguments else result[arguments["@output"]]
        return tensor.resolve_conj().resolve_neg()


def describe_call(
    target: str, arguments: Mapping[str, Any], tensors: Mapping[str, DraftTensor], output: DraftTensor
) -> OperatorCall:
    """Return a call of a draft as data. arguments: plain, tensors by their names in `tensors`."""
    operands: list[OperandSpec] = []

    def rename(value: Any, name: str) -> Any:
        if isinstance(value, list):
            return [rename(item, f"{name}[{i}]") for i, item in enumerate(value)]
        if not isinstance(value, dict) or "tensor" not in value:
            return value
        info = tensors[value["tensor"]]
        operands.append(OperandSpec(name, info.shape, info.dtype))
        return {"tensor": name}

    renamed = {name: rename(value, name) for name, value in arguments.items()}
    return OperatorCall(target, json.dumps(renamed, sort_keys=True), tuple(operands), output.shape)
