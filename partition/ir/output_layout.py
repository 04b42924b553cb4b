"""`OutputLayout`: how the tensors of a model's output are nested, as plain data, so that others can put it together.

Lists, tuples and dicts come back as they are. Named tuples, dataclasses and classes of libraries that are like dicts,
such as those of Hugging Face, come back as `Outputs`, which is read in the same ways.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from .pytree import iter_leaves

TENSOR, VALUE, LIST, TUPLE, DICT, OUTPUTS = "tensor", "value", "list", "tuple", "dict", "outputs"
_PLAIN = (bool, int, float, str)


class OutputLayout(msgspec.Struct, frozen=True):
    """One node of an output. parts: inside of it, with `names` where they have some.

    number: of a tensor among those that are collected; -1 for one that nobody reads, which comes back as None. value:
    of a leaf that is no tensor; None for whatever is not plain.
    """

    kind: str
    names: list[str] = []
    parts: list["OutputLayout"] = []
    number: int = -1
    value: bool | int | float | str | None = None

    def build(self, tensors: Sequence[Tensor]) -> Any:
        """Return the output made of these tensors."""
        if self.kind == TENSOR:
            return tensors[self.number] if self.number >= 0 else None
        if self.kind == VALUE:
            return self.value
        parts = [part.build(tensors) for part in self.parts]
        if self.kind == OUTPUTS:
            return Outputs(dict(zip(self.names, parts, strict=True)))
        if self.kind == DICT:
            return dict(zip(self.names, parts, strict=True))
        return tuple(parts) if self.kind == TUPLE else parts


class Outputs:
    """A model's output with named parts: by name as attribute or key, or by number among those that are not None."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.__dict__.update(parts)
        self._parts = dict(parts)

    def __getitem__(self, key: str | int | slice) -> Any:
        return self._parts[key] if isinstance(key, str) else self.to_tuple()[key]

    def __contains__(self, key: str) -> bool:
        return self._parts.get(key) is not None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_tuple())

    def __len__(self) -> int:
        return len(self.to_tuple())

    def get(self, key: str, default: Any = None) -> Any:
        """Return a part by name."""
        return self._parts.get(key, default)

    def flatten(self) -> tuple[list[Any], list[str]]:
        """Return the parts and their names."""
        return list(self._parts.values()), list(self._parts)

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the parts that are not None."""
        return tuple(part for part in self._parts.values() if part is not None)

    def __repr__(self) -> str:
        return f"Outputs({', '.join(self._parts)})"


register_pytree_node(
    Outputs, lambda outputs: outputs.flatten(), lambda parts, names: Outputs(dict(zip(names, parts, strict=True)))
)


def list_tensors(output: Any) -> list[Tensor]:
    """Return the tensors of an output, in the order in which `describe_output` numbers them."""
    return [leaf for leaf in iter_leaves(output) if isinstance(leaf, Tensor)]


def describe_output(output: Any, wanted: Sequence[int]) -> OutputLayout:
    """Return the layout of an output. wanted: numbers of the tensors that are collected, as `list_tensors` has them."""
    numbers = {id(tensor): wanted.index(i) for i, tensor in enumerate(list_tensors(output)) if i in wanted}
    return _describe(output, numbers)


def _describe(node: Any, numbers: Mapping[int, int]) -> OutputLayout:
    if isinstance(node, Tensor):
        return OutputLayout(TENSOR, number=numbers.get(id(node), -1))
    named = _named_parts(node)
    if named is not None:
        kind = DICT if type(node) is dict else OUTPUTS
        return OutputLayout(kind, list(named), [_describe(part, numbers) for part in named.values()])
    if isinstance(node, list | tuple):
        kind = LIST if isinstance(node, list) else TUPLE
        return OutputLayout(kind, parts=[_describe(part, numbers) for part in node])
    return OutputLayout(VALUE, value=node if isinstance(node, _PLAIN) else None)


def _named_parts(node: Any) -> dict[str, Any] | None:
    """Return the parts of a node by their names; None where it has none."""
    if isinstance(node, Mapping) and all(isinstance(name, str) for name in node):
        return dict(node)
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return dict(zip(node._fields, node, strict=True))
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
    return None
