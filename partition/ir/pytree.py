"""The arguments and results of modules: tensors and plain values in nested lists, tuples, dicts and dataclasses.

Torch's pytree knows these containers, and those that libraries have registered, but takes plain dataclasses for leaves.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

Rebuild = Callable[[Sequence[Any]], Any]


def flatten(value: Any) -> tuple[list[Any], Rebuild]:
    """Return the leaves of nested containers, and a function that puts others in their places."""
    tops, spec = tree_flatten(value)
    parts = [_open(top) for top in tops]

    def rebuild(leaves: Sequence[Any]) -> Any:
        left = iter(leaves)
        values = [part([next(left) for _ in held]) for held, part in parts]
        return tree_unflatten(values, spec)

    return [leaf for held, _ in parts for leaf in held], rebuild


def _open(top: Any) -> tuple[list[Any], Rebuild]:
    if not _is_container(top):
        return [top], lambda leaves: leaves[0]
    leaves, inner = flatten(_fields(top))

    def rebuild(others: Sequence[Any]) -> Any:
        clone = copy.copy(top)
        for name, value in inner(others).items():
            object.__setattr__(clone, name, value)  # as a frozen one is made, too
        return clone

    return leaves, rebuild


def _is_container(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def iter_leaves(value: Any) -> Iterator[Any]:
    """Iterate over the leaves of nested containers."""
    for top in tree_leaves(value):
        if _is_container(top):
            yield from iter_leaves(_fields(top))
        else:
            yield top


def first_tensor(output: Any) -> Tensor | None:
    """Return the first tensor of a module's output; None where it has none."""
    return next((leaf for leaf in iter_leaves(output) if isinstance(leaf, Tensor)), None)
