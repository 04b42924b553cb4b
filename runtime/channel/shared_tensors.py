"""`SharedValues`: flat tensors that several processes of one host read and write at once, without a lock.

Their memory is that of an anonymous file (shared_memory.py): nothing is left of it when its processes are gone, however
they ended. Who made it hands a `Whereabouts` over; the others map the same memory with it.
"""

import mmap
import os
import weakref
from collections.abc import Mapping
from typing import Self

import msgspec
import torch
from torch import Tensor

from .message import DTYPES
from .shared_memory import PAGE, Offer, anonymous, mapped


class Spot(msgspec.Struct, frozen=True):
    """Where one tensor lies: `count` elements from byte `offset`."""

    name: str
    dtype: str
    offset: int
    count: int

    @property
    def end(self) -> int:
        """The byte behind it."""
        return self.offset + self.count * DTYPES[self.dtype].itemsize


class Whereabouts(msgspec.Struct, frozen=True):
    """All that another process of this host has to know to map the tensors."""

    offer: Offer
    spots: list[Spot]


class SharedValues:
    """tensors: by name, each flat, contiguous and at a page of its own; writes to them are seen by all."""

    def __init__(self, memory: mmap.mmap, where: Whereabouts) -> None:
        self.where = where
        self.tensors = {spot.name: _tensor(memory, spot) for spot in where.spots}

    @classmethod
    def made(cls, tensors: Mapping[str, Tensor]) -> Self:
        """New memory with copies of flat tensors. Others can map it as long as this object lives."""
        spots, end = [], PAGE
        for name, tensor in tensors.items():
            spots.append(Spot(name, str(tensor.dtype).removeprefix("torch."), end, tensor.numel()))
            end = -(-spots[-1].end // PAGE) * PAGE
        memory, offer = anonymous(end)
        made = cls(memory, Whereabouts(offer, spots))
        weakref.finalize(made, os.close, offer.descriptor)
        for name, tensor in tensors.items():
            made.tensors[name].copy_(tensor)
        return made

    @classmethod
    def found(cls, where: Whereabouts) -> Self:
        """Those that another process has made. OSError where they are not on this host, or not what was told."""
        memory = mapped(where.offer)
        if any(s.dtype not in DTYPES or not PAGE <= s.offset <= s.end <= len(memory) for s in where.spots):
            raise OSError("the shared memory does not hold what was told")
        return cls(memory, where)

    def __repr__(self) -> str:
        held = ", ".join(f"{spot.name} {spot.dtype}[{spot.count}]" for spot in self.where.spots)
        return f"{type(self).__name__}({held})"


def _tensor(memory: mmap.mmap, spot: Spot) -> Tensor:
    dtype = DTYPES[spot.dtype]
    if not spot.count:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=spot.count, offset=spot.offset)
