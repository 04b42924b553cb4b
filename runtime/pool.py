"""`Pool`: memory of one process in which tensors lie that its peers on this host read where they are.

What is sent again and again, as parameters are, is copied there once; from then on ZeroMQ carries only where it lies.
"""

import os
import weakref
from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

from .shared_memory import LEAST_BYTES, PAGE, anonymous

POOL_BYTES = 1 << 36  # of addresses; memory is taken where a tensor is


class Pool:
    """Who reads a tensor there tells when it has done so (shared_memory.py); until then it must not be written."""

    def __init__(self, size: int = POOL_BYTES) -> None:
        """OSError where there are no addresses left, AttributeError where the system has no such memory."""
        self._memory, self.offer = anonymous(size)
        self._closed = weakref.finalize(self, os.close, self.offer.descriptor)
        self._begin = np.frombuffer(self._memory, dtype=np.uint8, count=1).ctypes.data
        self._idle: dict[int, list[int]] = defaultdict(list)  # by size: offsets to use again
        self._end = PAGE

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor here, one for itself where it is too small for that, or there is no room."""
        size = -(-tensor.nbytes // PAGE) * PAGE
        if tensor.nbytes < LEAST_BYTES or (not self._idle[size] and self._end + size > self.offer.size):
            return tensor.clone()
        offset = self._idle[size].pop() if self._idle[size] else self._end
        self._end = max(self._end, offset + size)
        held = np.frombuffer(self._memory, dtype=np.uint8, count=tensor.nbytes, offset=offset)
        weakref.finalize(held, self._idle[size].append, offset).atexit = False
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
        return f"Pool({self._end - PAGE} bytes taken, {sum(map(len, self._idle.values()))} idle)"
