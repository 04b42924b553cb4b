"""Memory that two processes of one host share: tensors lie in it while ZeroMQ carries only where.

The sender owns an `Arena` for each peer, an anonymous file (memfd) that nobody has to clean up, whatever is killed. The
peer opens it through /proc as a `MappedArena`, once it has found the token there that the offer names. A tensor lies in
a slot, which is the sender's until it is filled, then the peer's, which frees it when the last tensor over it is gone.
A tensor in the sender's pool (tensor_pool.py) is lent instead: its slot has no memory, and the peer reads it in place.
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

from .message import DTYPES, NUMPY_DTYPES, MalformedError, SharedSlot, to_buffer

ARENA_BYTES = 1 << 30  # addresses of an arena; memory is taken where a slot is
MIN_SLOT_BYTES = 8 << 10  # a smaller tensor is sent as quickly as its slot
MIN_SHARED_BYTES = 64 << 10  # a smaller one is not worth a place of its own before it is sent
KEPT_BYTES = 32 << 20  # from the beginning of a peer's pool: pages there stay mapped when they were read
SLOTS = 4096 - 64
_NAME = "cutset"
_TOKEN_BYTES = 16
_FLAGS_AT = 64
PAGE = mmap.PAGESIZE
_DATA_AT = PAGE
FREE, TAKEN = 0, 1
_NUMPY_DTYPES = {name: np.dtype(name) for name, dtype in DTYPES.items() if dtype in NUMPY_DTYPES}


class Offer(msgspec.Struct, frozen=True):
    """Where a peer on the same host finds an arena or a pool: the descriptor of a process, and what must be there.

    size: in bytes. token: random bytes at the beginning of the memory, by which the peer knows it.
    """

    pid: int
    descriptor: int
    size: int
    token: bytes


class Arena:
    """The sender's end of the memory shared with one peer.

    `put` never waits: where no slot is free, the tensor travels over the socket.
    """

    def __init__(self, size: int = ARENA_BYTES) -> None:
        self._memory, self.offer = create_memory(size)
        self._file = self.offer.descriptor
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._flags = np.frombuffer(self._memory, dtype=np.uint8, count=SLOTS, offset=_FLAGS_AT)
        self._offsets: list[int] = []
        self._idle: dict[int, list[int]] = defaultdict(list)  # by size: free slots
        self._in_use: deque[tuple[int, int]] = deque()  # slots that the peer has, with their sizes, oldest first
        self._end = _DATA_AT
        self._viewed: set[int] = set()  # slots that tensors of this end show, too
        self._reserved: dict[int, int] = {}  # slots that are to be filled and sent, by where they begin
        self._lent: dict[int, Tensor] = {}  # by slot without memory: a pooled tensor that the peer reads

    def put(self, tensor: Tensor) -> SharedSlot | None:
        """Copy a tensor into a slot of its own. Returns the slot; None for a small tensor, or without room."""
        count = tensor.nbytes
        if count < MIN_SLOT_BYTES:
            return None
        size = -(-count // PAGE) * PAGE
        slot = self._take_slot(size)
        if slot is None:
            return None
        offset = self._offsets[slot]
        if tensor.is_contiguous():
            self._memory[offset : offset + count] = to_buffer(tensor)
        else:
            self._bytes[offset : offset + count].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        self._flags[slot] = TAKEN
        self._in_use.append((slot, size))
        return SharedSlot(slot, offset)

    def reserve(self, count: int, dtype: torch.dtype) -> Tensor | None:
        """Return memory [count] in a slot of its own, to be written and sent; None if it is small, or without room."""
        nbytes = count * dtype.itemsize
        size = -(-nbytes // PAGE) * PAGE
        slot = self._take_slot(size) if nbytes >= MIN_SHARED_BYTES else None
        if slot is None:
            return None
        self._in_use.append((slot, size))
        view = self._view(SharedSlot(slot, self._offsets[slot]), nbytes)
        address = view.ctypes.data
        self._reserved[address] = slot
        weakref.finalize(view, self._reserved.pop, address, None).atexit = False  # it may never be sent
        return torch.from_numpy(view).view(dtype)

    def send_reserved(self, tensor: Tensor) -> SharedSlot | None:
        """Give the peer a tensor that fills what was reserved for it; None if it is another, or the peer has had it."""
        slot = self._reserved.pop(tensor.data_ptr(), None)
        if slot is None:
            return None
        self._flags[slot] = TAKEN
        return SharedSlot(slot, self._offsets[slot])

    def lend(self, tensor: Tensor, offset: int) -> SharedSlot | None:
        """Lend a tensor that lies at an offset of the pool, and keep it until the peer gives it back.

        Returns its slot; None where all slots are taken.
        """
        slot = self._take_slot(0)
        if slot is None:
            return None
        self._lent[slot] = tensor
        self._flags[slot] = TAKEN
        return SharedSlot(slot, offset, pooled=True)

    def reclaim(self) -> None:
        """Let go of lent tensors that the peer has given back."""
        for slot in [slot for slot in self._lent if self._flags[slot] == FREE]:
            del self._lent[slot]
            self._idle[0].append(slot)

    def view_slot(self, slot: SharedSlot, tensor: Tensor) -> Tensor:
        """A view of the copy of `tensor` in a slot, which is not used again as long as the view exists."""
        return torch.from_numpy(self._view(slot, tensor.nbytes)).view(tensor.dtype).view(tensor.shape)

    @property
    def used_bytes(self) -> int:
        """Bytes of memory that slots have taken so far."""
        return self._end - _DATA_AT

    def close(self) -> None:
        """Let go of the memory; what the peer has mapped stays until the peer lets go, too."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _view(self, slot: SharedSlot, nbytes: int) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
        """The bytes of a slot, which is not used again as long as they are shown."""
        view = np.frombuffer(self._memory, dtype=np.uint8, count=nbytes, offset=slot.offset)
        self._viewed.add(slot.number)
        weakref.finalize(view, self._viewed.discard, slot.number).atexit = False
        return view

    def _take_slot(self, size: int) -> int | None:
        # The slot that came back last is still in the caches; mostly they come back in order.
        while self._in_use and self._is_free(self._in_use[0][0]):
            slot, slot_size = self._in_use.popleft()
            self._idle[slot_size].append(slot)
        if not self._idle[size]:
            self._collect()
        if self._idle[size]:
            return self._idle[size].pop()
        if self._end + size > self.offer.size or len(self._offsets) == SLOTS:
            return None
        self._offsets.append(self._end)
        self._end += size
        return len(self._offsets) - 1

    def _is_free(self, slot: int) -> bool:
        """Whether no tensor shows the slot any more, at either end."""
        return bool(self._flags[slot] == FREE) and slot not in self._viewed

    def _collect(self) -> None:
        """Free the slots that the peer is done with.

        Where all slots are free and half of the arena is taken, begin anew: sizes no longer sent need no room.
        """
        still: deque[tuple[int, int]] = deque()
        for slot, size in self._in_use:
            if self._is_free(slot):
                self._idle[size].append(slot)
            else:
                still.append((slot, size))
        self._in_use = still
        self.reclaim()
        if not self._in_use and not self._lent and self._end > self.offer.size // 2:
            self._offsets.clear()
            self._idle.clear()
            self._end = _DATA_AT


class MappedArena:
    """The receiver's end of another process's arena, and of its pool if it has one.

    OSError where the arena is not on this host.
    """

    def __init__(self, offer: Offer, pool: Offer | None = None) -> None:
        self._memory, self._pool = map_memory(offer), _map_if_found(pool)
        self._flags = np.frombuffer(self._memory, dtype=np.uint8, count=SLOTS, offset=_FLAGS_AT)

    @property
    def pooled(self) -> bool:
        """Whether the sender's pool is mapped, too."""
        return self._pool is not None

    def tensor(self, slot: SharedSlot, dtype: str, shape: list[int]) -> Tensor:
        """The tensor in a slot, over the shared memory; the slot is freed when nothing shows the tensor any more.

        MalformedError where there is no such slot.
        """
        memory = self._pool if slot.pooled else self._memory
        size = 0 if memory is None else len(memory)
        count = torch.Size(shape).numel() * DTYPES[dtype].itemsize
        inside = _DATA_AT <= slot.offset <= size - count and 0 <= slot.number < SLOTS
        if memory is None or not inside or slot.offset % PAGE or not count:
            raise MalformedError("E504", f"a tensor of {count} bytes at {slot} of {size} bytes of shared memory")
        numpy_dtype = _NUMPY_DTYPES.get(dtype)
        if numpy_dtype is None:
            view = np.frombuffer(memory, dtype=np.uint8, count=count, offset=slot.offset)
        else:
            view = np.ndarray(shape, numpy_dtype, memory, slot.offset)
        stays = not slot.pooled or slot.offset + count <= KEPT_BYTES  # to map pages anew costs as much as to copy them
        unused = None if stays else (memory, slot.offset, -(-count // PAGE) * PAGE)
        weakref.finalize(view, _free_slot, self._flags, slot.number, unused).atexit = False
        tensor = torch.from_numpy(view)
        return tensor.view(DTYPES[dtype]).view(shape) if numpy_dtype is None else tensor


def _free_slot(
    flags: "np.ndarray[tuple[int], np.dtype[np.uint8]]", number: int, unused: tuple[mmap.mmap, int, int] | None
) -> None:
    """Mark a slot as free for the sender.

    unused: memory, offset and size of pages that must not count as this process's any longer; else the sender's whole
    pool would come to do so.
    """
    if unused is not None:
        memory, offset, size = unused
        memory.madvise(mmap.MADV_DONTNEED, offset, size)
    flags[number] = FREE


def create_memory(size: int) -> tuple[mmap.mmap, Offer]:
    """Make memory of a file without a name, which cannot be cut short. Returns it, and where a peer finds it.

    A token lies at its beginning. The caller closes the descriptor; peers can map the memory until then.
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


def map_memory(offer: Offer) -> mmap.mmap:
    """Map the memory that another process offers. OSError where it is not found here: on another host, say."""
    with _open_offer(offer) as file:
        if os.fstat(file).st_size != offer.size or offer.size < _DATA_AT:
            raise OSError("the shared memory is not of the size that its offer says")
        if not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise OSError("the shared memory may be cut short, which would kill who reads it then")
        memory = mmap.mmap(file, offer.size)
    if memory[:_TOKEN_BYTES] != offer.token:
        raise OSError("the shared memory is another one")
    return memory


def _map_if_found(pool: Offer | None) -> mmap.mmap | None:
    try:
        return None if pool is None else map_memory(pool)
    except OSError:  # no address space left, say: what lies there is copied, as everything is
        return None


@contextlib.contextmanager
def _open_offer(offer: Offer) -> Iterator[int]:
    """Open the descriptor of another process here. OSError where it is not that of shared memory."""
    path = f"/proc/{offer.pid}/fd/{offer.descriptor}"
    if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
        raise OSError(f"{path} is no shared memory")
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield file
    finally:
        os.close(file)
