"""`SharedTensors`: flat tensors that several processes of one host read and write at once, without a lock.

Their memory is that of an anonymous file (shared_memory.py): nothing is left of it when its processes are gone, however
they ended. The process that creates it hands out a `SharedTensorLocation`; the others map the same memory with it.
"""

import mmap
import os
import weakref
from collections.abc import Mapping
from typing import Self

import msgspec
import torch
from torch import Tensor

from ...runtime.channel.message import DTYPES
from ...runtime.channel.shared_memory import PAGE, Offer, create_memory, map_memory


class TensorRegion(msgspec.Struct, frozen=True):
    """Where one tensor lies in the memory: `count` elements from byte `offset`."""

    name: str
    dtype: str
    offset: int
    count: int

    @property
    def end(self) -> int:
        """The first byte behind the tensor."""
        return self.offset + self.count * DTYPES[self.dtype].itemsize


class SharedTensorLocation(msgspec.Struct, frozen=True):
    """All that another process of this host has to know to map the tensors."""

    offer: Offer
    regions: list[TensorRegion]


class SharedTensors:
    """Flat tensors in shared memory, by name in `tensors`.

    Each is contiguous and begins at a page of its own. All processes that map the memory see every write.
    """

    def __init__(self, memory: mmap.mmap, location: SharedTensorLocation) -> None:
        self.location = location
        self.tensors = {region.name: _tensor_at(memory, region) for region in location.regions}

    @classmethod
    def create(cls, layout: Mapping[str, tuple[torch.dtype, int]]) -> Self:
        """Make flat tensors of zeros in new memory, which others can map as long as the returned object lives.

        layout: by name, the dtype and the number of elements.
        """
        regions, end = [], PAGE
        for name, (dtype, count) in layout.items():
            regions.append(TensorRegion(name, str(dtype).removeprefix("torch."), end, count))
            end = -(-regions[-1].end // PAGE) * PAGE
        memory, offer = create_memory(end)
        shared = cls(memory, SharedTensorLocation(offer, regions))
        weakref.finalize(shared, os.close, offer.descriptor)
        return shared

    @classmethod
    def attach(cls, location: SharedTensorLocation) -> Self:
        """Map the tensors that another process has created.

        OSError where the memory is not on this host, or does not hold what the location says.
        """
        memory = map_memory(location.offer)
        regions = location.regions
        if any(r.dtype not in DTYPES or not PAGE <= r.offset <= r.end <= len(memory) for r in regions):
            raise OSError("the shared memory does not hold what its location says")
        return cls(memory, location)

    def __repr__(self) -> str:
        regions = ", ".join(f"{region.name} {region.dtype}[{region.count}]" for region in self.location.regions)
        return f"{type(self).__name__}({regions})"


def _tensor_at(memory: mmap.mmap, region: TensorRegion) -> Tensor:
    dtype = DTYPES[region.dtype]
    if not region.count:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=region.count, offset=region.offset)
