"""`InitEvent`: an operator that made or changed values while a model was recorded; `EventExecutor` runs it for real."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .generator_tracking import DeferredDraw, GeneratorReplay, Unrecordable

PARTS_OF = 16  # numbers that torch draws of a normal distribution at a time


@dataclass(frozen=True)
class TensorView:
    """A tensor as a view of a memory, given by number. stride, offset: in elements."""

    memory: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor, memory: int) -> "TensorView":
        """Return the view that a tensor is of a memory."""
        return cls(memory, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def covers(self, nbytes: int) -> bool:
        """Whether the view shows each byte of a memory of `nbytes` exactly once."""
        size = 1
        for stride, count in sorted((s, n) for s, n in zip(self.stride, self.shape, strict=True) if n != 1):
            if stride != size:
                return False
            size *= count
        return size * self.dtype.itemsize == nbytes


@dataclass(frozen=True)
class InitEvent:
    """An operator with views for its tensors, or a constant.

    makes: the views of the tensors that it returns, None for one that is not new. overwrites: a memory of whose former
    content nothing is left. draw: from which generator it draws, in which state. constant: the first content of a
    memory, instead of an operator.
    """

    op: Any
    args: Any
    makes: tuple[TensorView | None, ...] = ()
    overwrites: int | None = None
    draw: DeferredDraw | None = None
    constant: Tensor | None = None

    @property
    def memories(self) -> set[int]:
        """All memories that it touches."""
        views = [leaf for leaf in tree_leaves(self.args) if isinstance(leaf, TensorView)]
        return {view.memory for view in (*views, *self.makes) if view is not None}


def draws_alike_in_parts(event: InitEvent, view: TensorView, nbytes: int) -> bool:
    """Whether an event fills a memory with numbers that are the same if its flat parts are drawn one after the other.

    torch draws a number of a uniform distribution for each element in turn, and of a normal one for each `PARTS_OF`
    elements in turn; the last elements, fewer than that, are drawn together with some before them.
    """
    (first, *rest), _ = event.args if event.draw is not None else ((None,), {})
    return (
        event.op in (torch.ops.aten.uniform_.default, torch.ops.aten.normal_.default)
        and event.overwrites == view.memory
        and first == view
        and not any(isinstance(one, TensorView) for one in rest)
        and view.offset == 0
        and view.dtype in (torch.float32, torch.float64)
        and view.covers(nbytes)
        and view.stride == torch.empty(view.shape, device="meta").stride()
    )


class EventExecutor:
    """Runs events and holds the memories that they need and leave.

    nbytes: of each memory, by number. followed: see `GeneratorReplay`.
    """

    def __init__(self, nbytes: Sequence[int], followed: frozenset[int] = frozenset()) -> None:
        self._nbytes = nbytes
        self._held: dict[int, torch.UntypedStorage] = {}
        self._generators = GeneratorReplay(followed)

    def execute(self, event: InitEvent) -> None:
        """Run one event; raise Unrecordable where its operator behaves otherwise than when it was recorded."""
        if event.constant is not None:
            (view,) = event.makes
            assert view is not None
            self._held[view.memory] = event.constant.clone().untyped_storage()
            return
        args, kwargs = tree_map(lambda leaf: self.tensor(leaf) if isinstance(leaf, TensorView) else leaf, event.args)
        if event.draw is None:
            result = event.op(*args, **kwargs)
        else:
            with self._generators.replay(event.draw):
                result = event.op(*args, **kwargs)
        for view, tensor in zip(event.makes, tensors(result), strict=True):
            if view is not None:
                self._keep(event, view, tensor)

    def tensor(self, view: TensorView) -> Tensor:
        """Return the tensor of a view; it is zero where nothing was written, as in memory that was only allocated."""
        storage = self._held.get(view.memory)
        if storage is None:
            storage = torch.zeros(self._nbytes[view.memory], dtype=torch.uint8).untyped_storage()
            self._held[view.memory] = storage
        return torch.empty(0, dtype=view.dtype).set_(storage, view.offset, view.shape, view.stride)

    def draw_in_parts(self, event: InitEvent, view: TensorView, *, part: int) -> Iterator[tuple[int, Tensor]]:
        """Run an event that `draws_alike_in_parts`, and yield the flat elements of its memory from each start.

        part: elements of all parts but the last, which has up to `PARTS_OF` more. The memory is never held.
        """
        assert event.draw is not None
        (_, *bounds), options = event.args
        size = math.prod(view.shape)
        with self._generators.replay(event.draw):
            for start in range(0, max(1, size - PARTS_OF), part):
                stop = size if start + part >= size - PARTS_OF else start + part
                values = torch.empty(stop - start, dtype=view.dtype)
                event.op(values, *bounds, **{name: one for name, one in options.items() if name != "generator"})
                yield start, values

    def free(self, memory: int) -> None:
        """Free a memory."""
        self._held.pop(memory, None)

    @property
    def held_bytes(self) -> int:
        """The bytes of all memories that are held."""
        return sum(self._nbytes[memory] for memory in self._held)

    def _keep(self, event: InitEvent, view: TensorView, tensor: Tensor) -> None:
        """Keep a result as the memory that was recorded, without a copy where that is possible."""
        if tensor.dtype != view.dtype or tuple(tensor.shape) != view.shape:
            raise Unrecordable(f"{event.op} returned {tensor.dtype} {tuple(tensor.shape)} instead of {view}")
        storage = tensor.untyped_storage()
        own = all(storage.data_ptr() != held.data_ptr() for held in self._held.values())
        alike = tensor.stride() == view.stride and tensor.storage_offset() == view.offset
        if own and alike and storage.nbytes() == self._nbytes[view.memory]:
            self._held[view.memory] = storage
        else:
            self.tensor(view).copy_(tensor)


def tensors(values: Any) -> list[Tensor]:
    """Return all tensors in nested containers, in order."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
