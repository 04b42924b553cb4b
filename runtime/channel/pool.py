"""`Pool`: memory of one process in which tensors lie that its peers on this host read where they are.

What is sent again and again, as parameters are, is copied there once; from then on ZeroMQ carries only where it lies.
"""

import mmap
import os
import weakref
from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

from .shared_memory import LEAST_BYTES, PAGE, anonymous

IDLE_BYTES = 64 << 20  # that a pool keeps for tensors to come


class Pool:
    """Who reads a tensor there tells when it has done so (shared_memory.py); until then it must not be written."""

    def __init__(self, size: int | None = None) -> None:
        """size: of addresses in bytes, by default of all memory; memory is taken where a tensor is.

        OSError where there are no addresses left, AttributeError where the system has no such memory.
        """
        self._memory, self.offer = anonymous(size or os.sysconf("SC_PHYS_PAGES") * PAGE)
        self._closed = weakref.finalize(self, os.close, self.offer.descriptor)
        self._begin = np.frombuffer(self._memory, dtype=np.uint8, count=1).ctypes.data
        self._warm: dict[int, list[int]] = defaultdict(list)  # by size: offsets to use again, whose memory is there
        self._cold: dict[int, list[int]] = defaultdict(list)  # the same, without memory
        self._end = PAGE

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor here, one for itself where it is too small for that, or there is no room."""
        size = -(-tensor.nbytes // PAGE) * PAGE
        offset = self._spot(size) if tensor.nbytes >= LEAST_BYTES else None
        if offset is None:
            return tensor.clone()
        held = np.frombuffer(self._memory, dtype=np.uint8, count=tensor.nbytes, offset=offset)
        weakref.finalize(held, self._gone, offset, size).atexit = False
        return torch.from_numpy(held).view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def offset(self, tensor: Tensor) -> int | None:
        """Where a tensor lies here; None where it does not, or does not begin at a page."""
        offset = tensor.data_ptr() - self._begin
        here = 0 < offset < self._end and tensor.is_contiguous() and tensor.nbytes >= LEAST_BYTES
        return offset if here and offset % PAGE == 0 else None

    def close(self) -> None:
        """Nobody finds it any more; tensors here, and those of peers that have found it, stay as they are."""
        self._closed()

    def __repr__(self) -> str:
        return f"Pool({self._end - PAGE} bytes taken, {self._warm_bytes} idle)"

    @property
    def _warm_bytes(self) -> int:
        return sum(size * len(offsets) for size, offsets in self._warm.items())

    def _spot(self, size: int) -> int | None:
        for spots in (self._warm, self._cold):
            if spots[size]:
                return spots[size].pop()
        if self._end + size > self.offer.size:
            return None
        self._end += size
        return self._end - size

    def _gone(self, offset: int, size: int) -> None:
        """Nothing shows the tensor there any more."""
        if self._warm_bytes + size <= IDLE_BYTES:
            self._warm[size].append(offset)
        else:
            self._memory.madvise(mmap.MADV_REMOVE, offset, size)
            self._cold[size].append(offset)
