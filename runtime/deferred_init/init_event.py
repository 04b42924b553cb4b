"""`Event`: an operator that made or changed values while a model was recorded; `Execution` runs it for real."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .generator_tracking import Drawing, DrawsAgain, Unrecordable


@dataclass(frozen=True)
class Place:
    """A tensor: which memory it shows, and how."""

    memory: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor, memory: int) -> "Place":
        """Where a tensor lies in a memory."""
        return cls(memory, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def covers(self, nbytes: int) -> bool:
        """Whether the tensor shows each of so many bytes, once."""
        size = 1
        for stride, count in sorted((s, n) for s, n in zip(self.stride, self.shape, strict=True) if n != 1):
            if stride != size:
                return False
            size *= count
        return size * self.dtype.itemsize == nbytes


@dataclass(frozen=True)
class Event:
    """An operator with places for its tensors.

    makes: those of the tensors that it returns, None for what is no new one. overwrites: a memory of whose former
    content nothing is left. draws: from which generator, in which state. constant: what a memory holds at first,
    instead of an operator.
    """

    op: Any
    args: Any
    makes: tuple[Place | None, ...] = ()
    overwrites: int | None = None
    draws: Drawing | None = None
    constant: Tensor | None = None

    @property
    def memories(self) -> set[int]:
        """All that it touches."""
        places = [leaf for leaf in tree_leaves(self.args) if isinstance(leaf, Place)]
        return {place.memory for place in (*places, *self.makes) if place is not None}


class Execution:
    """Runs events; the memories that they need and leave are here. nbytes: of each memory; followed: see DrawsAgain."""

    def __init__(self, nbytes: Sequence[int], followed: frozenset[int] = frozenset()) -> None:
        self._nbytes = nbytes
        self._held: dict[int, torch.UntypedStorage] = {}
        self._draws = DrawsAgain(followed)

    def execute(self, event: Event) -> None:
        """Run one event; Unrecordable where its operator behaves otherwise than when it was recorded."""
        if event.constant is not None:
            (place,) = event.makes
            assert place is not None
            self._held[place.memory] = event.constant.clone().untyped_storage()
            return
        args, kwargs = tree_map(lambda leaf: self.tensor(leaf) if isinstance(leaf, Place) else leaf, event.args)
        if event.draws is None:
            result = event.op(*args, **kwargs)
        else:
            with self._draws.drawing(event.draws):
                result = event.op(*args, **kwargs)
        for place, tensor in zip(event.makes, tensors(result), strict=True):
            if place is not None:
                self._keep(event, place, tensor)

    def tensor(self, place: Place) -> Tensor:
        """What a place shows; zeros where nothing was written, as memory that was only asked for."""
        storage = self._held.get(place.memory)
        if storage is None:
            storage = torch.zeros(self._nbytes[place.memory], dtype=torch.uint8).untyped_storage()
            self._held[place.memory] = storage
        return torch.empty(0, dtype=place.dtype).set_(storage, place.offset, place.shape, place.stride)

    def free(self, memory: int) -> None:
        """Let go of a memory."""
        self._held.pop(memory, None)

    @property
    def held_bytes(self) -> int:
        """Of all memories that are held."""
        return sum(self._nbytes[memory] for memory in self._held)

    def _keep(self, event: Event, place: Place, tensor: Tensor) -> None:
        """Take a result for the memory that was recorded."""
        if tensor.dtype != place.dtype or tuple(tensor.shape) != place.shape:
            raise Unrecordable(f"{event.op} gave {tensor.dtype} {tuple(tensor.shape)} instead of {place}")
        storage = tensor.untyped_storage()
        own = all(storage.data_ptr() != held.data_ptr() for held in self._held.values())
        alike = tensor.stride() == place.stride and tensor.storage_offset() == place.offset
        if own and alike and storage.nbytes() == self._nbytes[place.memory]:
            self._held[place.memory] = storage
        else:
            self.tensor(place).copy_(tensor)


def tensors(values: Any) -> list[Tensor]:
    """All tensors in nested containers, in order."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
