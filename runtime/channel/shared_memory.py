"""Memory that two processes of one host share: tensors lie in it while ZeroMQ carries only where.

The sender owns an `Arena` for each peer, an anonymous file (memfd) that nobody has to clean up, whatever is killed. The
peer opens it through /proc as a `Mapping`, once it has found the token there that it was told. A tensor lies in a slot:
the sender's until it is filled, then the peer's, which gives it back when the last tensor over it is gone. A tensor
that lies in the sender's pool (pool.py) is lent instead: its slot has no memory, and the peer reads it where it is.
"""

import contextlib
import fcntl
import mmap
import os
import secrets
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator

import msgspec
import numpy as np
import torch
from torch import Tensor

from .message import DTYPES, MalformedError, Place, buffer_of

ARENA_BYTES = 1 << 30  # of addresses; memory is taken where a slot is
LEAST_BYTES = 64 << 10  # a smaller tensor is sent as quickly as its place
SLOTS = 4096 - 64
_NAME = "cutset"
_TOKEN_BYTES = 16
_FLAGS_AT = 64
PAGE = mmap.PAGESIZE
_DATA_AT = PAGE
FREE, TAKEN = 0, 1


class Offer(msgspec.Struct, frozen=True):
    """Where a peer on the same host finds an arena or a pool: a process's descriptor, and what it must find there."""

    pid: int
    descriptor: int
    size: int
    token: bytes


class Arena:
    """The sender's end. `put` never waits: where no slot is free, the tensor goes another way."""

    def __init__(self, size: int = ARENA_BYTES) -> None:
        self._memory, self.offer = anonymous(size)
        self._file = self.offer.descriptor
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._flags = np.frombuffer(self._memory, dtype=np.uint8, count=SLOTS, offset=_FLAGS_AT)
        self._offsets: list[int] = []
        self._idle: dict[int, list[int]] = defaultdict(list)  # by size: slots to use again
        self._away: deque[tuple[int, int]] = deque()  # slots that the peer has, with their sizes, oldest first
        self._end = _DATA_AT
        self._kept: set[int] = set()  # slots that this end looks at, too
        self._lent: dict[int, Tensor] = {}  # by slot without memory: what must stay as it is until that is back

    def put(self, tensor: Tensor) -> Place | None:
        """Copy a tensor into a slot of its own; None where it is too small for that, or there is no room."""
        count = tensor.nbytes
        if count < LEAST_BYTES:
            return None
        size = -(-count // PAGE) * PAGE
        slot = self._slot(size)
        if slot is None:
            return None
        offset = self._offsets[slot]
        if tensor.is_contiguous():
            self._memory[offset : offset + count] = buffer_of(tensor)
        else:
            self._bytes[offset : offset + count].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        self._flags[slot] = TAKEN
        self._away.append((slot, size))
        return Place(slot, offset)

    def lend(self, tensor: Tensor, offset: int) -> Place | None:
        """The place of a tensor that lies at an offset of the pool, which is kept until it is given back; None where
        all slots are taken.
        """
        slot = self._slot(0)
        if slot is None:
            return None
        self._lent[slot] = tensor
        self._flags[slot] = TAKEN
        return Place(slot, offset, pooled=True)

    def take_back(self) -> None:
        """Let go of what was lent and is given back."""
        for slot in [slot for slot in self._lent if self._flags[slot] == FREE]:
            del self._lent[slot]
            self._idle[0].append(slot)

    def kept(self, place: Place, tensor: Tensor) -> Tensor:
        """The tensor that was put at a place, as it lies there; the slot is not used again while it is looked at."""
        held = np.frombuffer(self._memory, dtype=np.uint8, count=tensor.nbytes, offset=place.offset)
        self._kept.add(place.slot)
        weakref.finalize(held, self._kept.discard, place.slot).atexit = False
        return torch.from_numpy(held).view(tensor.dtype).view(tensor.shape)

    @property
    def used_bytes(self) -> int:
        """Bytes of memory that slots have taken so far."""
        return self._end - _DATA_AT

    def close(self) -> None:
        """Let go of the memory; what the peer has mapped stays there until it lets go, too."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _slot(self, size: int) -> int | None:
        # The slot that came back last is still in the caches; mostly they come back in order.
        while self._away and self._is_back(self._away[0][0]):
            slot, back = self._away.popleft()
            self._idle[back].append(slot)
        if not self._idle[size]:
            self._collect()
        if self._idle[size]:
            return self._idle[size].pop()
        if self._end + size > self.offer.size or len(self._offsets) == SLOTS:
            return None
        self._offsets.append(self._end)
        self._end += size
        return len(self._offsets) - 1

    def _is_back(self, slot: int) -> bool:
        """Whether nobody looks at a slot any more."""
        return bool(self._flags[slot] == FREE) and slot not in self._kept

    def _collect(self) -> None:
        """Take back what the peer is done with; once that is all, sizes that are no longer sent need no room."""
        still: deque[tuple[int, int]] = deque()
        for slot, size in self._away:
            if self._is_back(slot):
                self._idle[size].append(slot)
            else:
                still.append((slot, size))
        self._away = still
        self.take_back()
        if not self._away and not self._lent and self._end > self.offer.size // 2:
            self._offsets.clear()
            self._idle.clear()
            self._end = _DATA_AT


class Mapping:
    """The receiver's end of another process's arena, and of its pool if it has one."""

    def __init__(self, offer: Offer, pool: Offer | None = None) -> None:
        self._memory, self._pool = mapped(offer), _mapped_if_found(pool)
        self._flags = np.frombuffer(self._memory, dtype=np.uint8, count=SLOTS, offset=_FLAGS_AT)

    @property
    def pooled(self) -> bool:
        """Whether it has found the pool."""
        return self._pool is not None

    def tensor(self, place: Place, dtype: str, shape: list[int]) -> Tensor:
        """The tensor at a place, over the shared memory; the slot is given back when nothing shows it any more."""
        memory = self._pool if place.pooled else self._memory
        size = 0 if memory is None else len(memory)
        count = torch.Size(shape).numel() * DTYPES[dtype].itemsize
        inside = _DATA_AT <= place.offset <= size - count and 0 <= place.slot < SLOTS
        if memory is None or not inside or place.offset % PAGE or not count:
            raise MalformedError("E504", f"a tensor of {count} bytes at {place} of {size} bytes of shared memory")
        held = np.frombuffer(memory, dtype=np.uint8, count=count, offset=place.offset)
        away = (memory, place.offset, -(-count // PAGE) * PAGE) if place.pooled else None
        weakref.finalize(held, _give_back, self._flags, place.slot, away).atexit = False
        return torch.from_numpy(held).view(DTYPES[dtype]).view(shape)


def _give_back(
    flags: "np.ndarray[tuple[int], np.dtype[np.uint8]]", slot: int, away: tuple[mmap.mmap, int, int] | None
) -> None:
    """away: memory that must not count as this process's any longer, or the sender's whole pool would come to do so."""
    if away is not None:
        memory, offset, size = away
        memory.madvise(mmap.MADV_DONTNEED, offset, size)
    flags[slot] = FREE


def anonymous(size: int) -> tuple[mmap.mmap, Offer]:
    """New memory of a file without a name, which cannot be cut short, and where a peer finds it.

    A token lies at its beginning. The descriptor is the caller's to close; peers can map the memory until then.
    """
    file = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, size)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        memory, token = mmap.mmap(file, size), secrets.token_bytes(_TOKEN_BYTES)
    except OSError:
        os.close(file)
        raise
    memory[:_TOKEN_BYTES] = token
    return memory, Offer(os.getpid(), file, size, token)


def mapped(offer: Offer) -> mmap.mmap:
    """The memory that another process offers. OSError where it is not to be found here: on another host, say."""
    with _opened(offer) as file:
        if os.fstat(file).st_size != offer.size or offer.size < _DATA_AT:
            raise OSError("the shared memory is not of the size that was told")
        if not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise OSError("the shared memory may be cut short, which would kill who reads it then")
        memory = mmap.mmap(file, offer.size)
    if memory[:_TOKEN_BYTES] != offer.token:
        raise OSError("the shared memory is another one")
    return memory


def _mapped_if_found(pool: Offer | None) -> mmap.mmap | None:
    try:
        return None if pool is None else mapped(pool)
    except OSError:  # no address space left, say: what lies there is copied, as everything is
        return None


@contextlib.contextmanager
def _opened(offer: Offer) -> Iterator[int]:
    """The descriptor of another process, opened here. OSError where it is none of an arena's."""
    path = f"/proc/{offer.pid}/fd/{offer.descriptor}"
    if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
        raise OSError(f"{path} is no shared memory")
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield file
    finally:
        os.close(file)
