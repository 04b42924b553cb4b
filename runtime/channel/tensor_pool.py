"""`TensorPool`: memory of one process whose tensors peers on the same host read in place, without a copy for each peer.

A tensor that is sent to many peers, such as a shard's values, is copied here once. It is then lent to each peer through
the arena for that peer (`Arena.lend`): the message carries only where the tensor lies.
"""

import mmap
import os
import weakref
from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

from .shared_memory import MIN_SHARED_BYTES, PAGE, create_memory

MAX_IDLE_BYTES = 64 << 20  # memory that a pool keeps for tensors to come


class TensorPool:
    """Copies of tensors that peers can read. Nobody may write one until every peer that reads it has given it back."""

    def __init__(self, size: int | None = None) -> None:
        """Reserve `size` bytes of addresses, by default as many as the machine has memory.

        Memory is taken only where a tensor is. OSError where there are no addresses left, AttributeError where the
        system has no such memory.
        """
        self._memory, self.offer = create_memory(size or os.sysconf("SC_PHYS_PAGES") * PAGE)
        self._close_file = weakref.finalize(self, os.close, self.offer.descriptor)
        self._begin = np.frombuffer(self._memory, dtype=np.uint8, count=1).ctypes.data
        self._warm: dict[int, list[int]] = defaultdict(list)  # by size: free offsets that still have their memory
        self._cold: dict[int, list[int]] = defaultdict(list)  # by size: free offsets whose memory was returned
        self._end = PAGE

    def copy(self, tensor: Tensor) -> Tensor:
        """Copy a tensor into the pool. One that is too small, or finds no room, is cloned outside of it."""
        size = -(-tensor.nbytes // PAGE) * PAGE
        offset = self._allocate(size) if tensor.nbytes >= MIN_SHARED_BYTES else None
        if offset is None:
            return tensor.clone()
        view = np.frombuffer(self._memory, dtype=np.uint8, count=tensor.nbytes, offset=offset)
        weakref.finalize(view, self._free, offset, size).atexit = False
        return torch.from_numpy(view).view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def offset(self, tensor: Tensor) -> int | None:
        """Where a tensor lies in the pool, in bytes; None where it does not, or does not begin at a page."""
        offset = tensor.data_ptr() - self._begin
        here = 0 < offset < self._end and tensor.is_contiguous() and tensor.nbytes >= MIN_SHARED_BYTES
        return offset if here and offset % PAGE == 0 else None

    def close(self) -> None:
        """Let no further peer map the pool; its tensors stay, here and at the peers that have mapped it."""
        self._close_file()

    def __repr__(self) -> str:
        return f"TensorPool({self._end - PAGE} bytes taken, {self._warm_bytes} idle)"

    @property
    def _warm_bytes(self) -> int:
        return sum(size * len(offsets) for size, offsets in self._warm.items())

    def _allocate(self, size: int) -> int | None:
        for offsets in (self._warm, self._cold):
            if offsets[size]:
                return offsets[size].pop()
        if self._end + size > self.offer.size:
            return None
        self._end += size
        return self._end - size

    def _free(self, offset: int, size: int) -> None:
        """Take an offset back once no tensor here shows it; give its memory back where enough is idle."""
        if self._warm_bytes + size <= MAX_IDLE_BYTES:
            self._warm[size].append(offset)
        else:
            self._memory.madvise(mmap.MADV_REMOVE, offset, size)
            self._cold[size].append(offset)
