"""`Draft`: the operators of a model in order, before their axes and loops are known; `DraftBuilder` enters them."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..ir.arguments import bind_arguments, call_operator, decode, find_tensors
from ..ir.random_ops import is_random
from ..operators.island import NUMBER_FUNCTIONS
from ..operators.rules.movement import STORE
from ..operators.sharding.signature import DraftTensor
from ..trace.source_location import module_path, source_line

Arguments = dict[str, Any]


@dataclass(frozen=True)
class DraftOp:
    """An operator before its loops are known; the fields are those of `ir.graph.Op`."""

    name: str
    target: str
    arguments: dict[str, Any]
    outputs: tuple[str, ...]
    module: str
    source: str
    writes: tuple[str, ...] = ()

    @functools.cached_property
    def operands(self) -> Mapping[str, str]:
        """Names of its tensors by argument, see `find_tensors`."""
        return find_tensors(self.arguments)


@dataclass
class Draft:
    """What capture has found: tensors by name, operators in order, and the names of the results."""

    tensors: dict[str, DraftTensor] = field(default_factory=dict)
    ops: list[DraftOp] = field(default_factory=list)
    results: list[str] = field(default_factory=list)


class DraftBuilder:
    """Enters tensors and operators into a draft under unique names, and follows through which a gradient flows."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._names: set[str] = set()
        self._with_gradient: set[str] = set()

    def enter(self, tensor: DraftTensor) -> DraftTensor:
        """Enter a tensor that no operator computes and return it; a tied parameter is entered once."""
        if tensor.kind == "parameter":
            self._with_gradient.add(tensor.name)
        return self._draft.tensors.setdefault(tensor.name, tensor)

    def tensor(self, name: str) -> DraftTensor:
        """Return a tensor by its name."""
        return self._draft.tensors[name]

    def has_gradient(self, tensor: str) -> bool:
        """Whether a gradient flows through a tensor, given by its name."""
        return tensor in self._with_gradient

    def emit(self, node: Node, target: Any, arguments: Arguments, values: Sequence[Any], *, name: str = "") -> DraftOp:
        """Enter an operator and its outputs, and return it.

        node: names the operator, unless `name` does, and says where in the model it stands. values: the trace's values
        of the outputs, tensors or numbers, which are numbered where there are several.
        """
        name = self._make_unique(name or node.name)
        outputs = []
        for i, value in enumerate(values):
            if value is not None:
                outputs.append(name if len(values) == 1 else f"{name}.{i}")
                self._draft.tensors[outputs[-1]] = draft_value(outputs[-1], value)
        if target is not torch.ops.aten.detach.default and any(
            map(self.has_gradient, find_tensors(arguments).values())
        ):
            self._with_gradient.update(outputs)
        writes = _overwritten_statistics(str(target), arguments)
        op = DraftOp(name, str(target), arguments, tuple(outputs), module_path(node), source_line(node), writes)
        self._draft.ops.append(op)
        return op

    def apply(self, node: Node, overload: Any, tensor: str, arguments: Mapping[str, Any], value: Tensor) -> str:
        """Enter an operator of one tensor, its argument `self`, and return the name of its output."""
        complete = {**bind_arguments(overload, (), {}), **arguments, "self": {"tensor": tensor}}
        return self.emit(node, overload, complete, [value]).outputs[0]

    def store(self, buffer: str, tensor: str) -> None:
        """Enter a copy of `tensor` into a buffer."""
        arguments: Arguments = {"self": {"tensor": buffer}, "src": {"tensor": tensor}, "non_blocking": False}
        name = self._make_unique(f"{buffer}.store")
        self._draft.tensors[name] = replace(self._draft.tensors[buffer], name=name, kind="value")
        self._draft.ops.append(DraftOp(name, STORE, arguments, (name,), "", "", (buffer,)))

    def on_meta(self, name: str) -> Tensor:
        """Return a tensor without values of a draft tensor's shape and dtype."""
        info = self._draft.tensors[name]
        return torch.empty(info.shape, dtype=getattr(torch, info.dtype), device="meta")

    def promoted_dtype(self, overload: Any, arguments: Arguments) -> torch.dtype | None:
        """Return the dtype of an operator's result where its tensors have several dtypes, else None."""
        names = find_tensors(arguments).values()
        if len({self._draft.tensors[name].dtype for name in names}) == 1:
            return None
        decoded = {name: decode(value, self.on_meta) for name, value in arguments.items()}
        result: Tensor = call_operator(str(overload), decoded)
        return result.dtype

    def _make_unique(self, name: str) -> str:
        unique, number = name, 1
        while unique in self._names or unique in self._draft.tensors:
            number += 1
            unique = f"{name}~{number}"
        self._names.add(unique)
        return unique


def draws(op: DraftOp) -> bool:
    """Whether an operator may draw random numbers."""
    return op.target not in NUMBER_FUNCTIONS and is_random(op.target, op.arguments)


def drop_unneeded(draft: Draft) -> list[DraftOp]:
    """Return the operators that lead to a result, overwrite a buffer, or advance torch's generator."""
    wanted, kept = set(draft.results), []
    for op in reversed(draft.ops):
        if op.writes or wanted.intersection(op.outputs) or draws(op):
            kept.append(op)
            wanted.update(op.operands.values())
    return kept[::-1]


def draft_value(name: str, value: Any) -> DraftTensor:
    """Return the draft tensor of what an operator of the trace returns; of a number, one that says so."""
    if not isinstance(value, Tensor):
        return DraftTensor(name, (), "", "number", (), 0)
    if not has_fixed_size(value):
        return DraftTensor(name, (), str(value.dtype).removeprefix("torch."), "dynamic", (), value.element_size())
    return draft_tensor(name, value, "value")


def has_fixed_size(value: Tensor) -> bool:
    """Whether the trace knows the size of a tensor in numbers."""
    return all(type(size) is int for size in (*value.shape, *value.stride()))


def draft_tensor(name: str, value: Tensor, kind: str) -> DraftTensor:
    """Return the draft tensor of a tensor of the trace, whose size is known."""
    dtype = str(value.dtype).removeprefix("torch.")
    return DraftTensor(name, tuple(value.shape), dtype, kind, tuple(value.stride()), value.element_size())


def _overwritten_statistics(target: str, arguments: Arguments) -> tuple[str, ...]:
    """Return the buffers that a normalisation overwrites, which its schema does not say."""
    flag = {"aten.batch_norm.default": "training", "aten.instance_norm.default": "use_input_stats"}.get(target)
    if flag is None or not arguments[flag]:
        return ()
    statistics = [arguments[name] for name in ("running_mean", "running_var")]
    return tuple(value["tensor"] for value in statistics if value is not None)
