"""`ReaderProcess`: a process that reads samples; requests and batches pass a socket as plain bytes.

As a fork (reader_forks.py) it has the dataset already, so nothing of it travels, and what comes back are dtypes, shapes
and numbers. Those of large tensors lie in memory that both share: a socket holds little, and who fills it waits until
the other end reads.
"""

import os
import select
import signal
import socket
import time
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor

from ...errors import BadInput, ProcessLost
from ...models.task import Data
from ...runtime.channel.message import DTYPES, SharedSlot
from ...runtime.channel.shared_memory import Arena, MappedArena, Offer
from .part_samples import PartEnd
from .reader_forks import ReaderForks

_LENGTH_BYTES = 8


class BatchSource(Protocol):
    """What reads batches by their numbers, and whatever else each needs. what: they are, in words."""

    what: str

    def read(self, number: int, *more: Any) -> Data | PartEnd | None:
        """Return a batch, the end of its part, or None where it is not wanted. BadInput where it cannot be read."""


class _Request(msgspec.Struct, array_like=True):
    """shares: whether the memory that was offered is shared."""

    number: int
    shares: bool
    more: list[Any]


class _Array(msgspec.Struct, array_like=True):
    """A tensor: its bytes, or the slot of shared memory where they are."""

    dtype: str
    shape: list[int]
    data: bytes = b""
    slot: SharedSlot | None = None


class _Reply(msgspec.Struct, array_like=True):
    """A batch, if there is one; or with a code the error of one that cannot be read.

    end: where it is the rest of a part, the batches that this has.
    """

    number: int
    inputs: list[_Array] = []
    targets: list[_Array] = []
    names: list[str] = []
    end: int | None = None
    code: str = ""
    facts: str = ""
    fix: str = ""


class ReaderProcess:
    """Reads the batches that it is asked for, one after the other. waited_s: for the batch that was taken last."""

    def __init__(self, forks: ReaderForks) -> None:
        self._forks, self._waiting, self._replies = forks, list[int](), dict[int, _Reply]()
        self.waited_s = 0.0
        self.pid, self._socket = forks.fork()
        try:
            self._arena = _map_arena(msgspec.msgpack.decode(_receive(self._socket), type=Offer))
        except OSError as error:
            raise self._lost() from error

    @property
    def waiting(self) -> int:
        """How many batches were asked for and not taken."""
        return len(self._waiting)

    def request(self, number: int, *more: Any) -> None:
        """Ask for the batch of a number. more: what else the source needs for it, plain data."""
        self._waiting.append(number)
        try:
            self._send_request(msgspec.msgpack.encode(_Request(number, self._arena is not None, list(more))))
        except OSError as error:
            raise self._lost() from error

    def take(self, number: int) -> Data | PartEnd | None:
        """Wait for what was asked for. BadInput where it cannot be read, ProcessLost where the process died."""
        self.waited_s = 0.0
        while number not in self._replies:
            start = time.perf_counter()
            select.select([self._socket], [], [])
            self.waited_s += time.perf_counter() - start
            try:
                self._receive_reply()
            except OSError as error:
                raise self._lost() from error
        self._waiting.remove(number)
        reply = self._replies.pop(number)
        if reply.code:
            raise BadInput(reply.code, reply.facts, fix=reply.fix)
        inputs, targets = (tuple(map(self._to_tensor, part)) for part in (reply.inputs, reply.targets))
        batch = Data(inputs, targets, tuple(reply.names)) if inputs else None
        return batch if reply.end is None else PartEnd(reply.end, batch)

    def forget(self, number: int) -> None:
        """Do not wait for a batch that was asked for any more."""
        self._waiting.remove(number)
        if number in self._replies:
            self._free(self._replies.pop(number))

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self._forks.reap(self.pid)
            self.pid = 0

    def _send_request(self, data: bytes) -> None:
        """Send a request, and take replies meanwhile: the other end may be sending a batch, and read nothing till then.

        A request names all samples of its batch, so it may be more than fits into the socket.
        """
        rest = memoryview(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
        while rest:
            readable, writable, _ = select.select([self._socket], [self._socket], [])
            if readable:
                self._receive_reply()
            elif writable:
                rest = rest[self._socket.send(rest, socket.MSG_DONTWAIT) :]

    def _receive_reply(self) -> None:
        """Take a reply, and keep it unless nobody waits for it any more."""
        reply = msgspec.msgpack.decode(_receive(self._socket), type=_Reply)
        if reply.number in self._waiting:
            self._replies[reply.number] = reply
        else:
            self._free(reply)

    def _free(self, reply: _Reply) -> None:
        """Give back the shared memory of a batch that nobody takes: it is free when no tensor shows it any more."""
        for array in (*reply.inputs, *reply.targets):
            self._to_tensor(array)

    def _to_tensor(self, array: _Array) -> Tensor:
        if array.slot is not None and self._arena is not None:
            return self._arena.tensor(array.slot, array.dtype, array.shape)
        dtype = getattr(torch, array.dtype)
        if not array.data:
            return torch.empty(array.shape, dtype=dtype)
        return torch.frombuffer(bytearray(array.data), dtype=dtype).view(array.shape)

    def _lost(self) -> ProcessLost:
        pid, self.pid = self.pid, 0
        return self._forks.describe_end(pid)

    def __repr__(self) -> str:
        return f"ReaderProcess({self.pid}, {self._forks.what}, {self.waiting} waiting)"


def fork_readers(samples: BatchSource) -> ReaderForks:
    """Return what forks processes that read samples."""

    def serve(ours: socket.socket) -> None:
        arena = Arena()
        _send(ours, msgspec.msgpack.encode(arena.offer))
        while True:
            try:
                request = msgspec.msgpack.decode(_receive(ours), type=_Request)
            except ConnectionError:
                return
            _send(ours, msgspec.msgpack.encode(_answer(samples, request, arena if request.shares else None)))

    return ReaderForks(serve, samples.what)


def _map_arena(offer: Offer) -> MappedArena | None:
    try:
        return MappedArena(offer)
    except OSError:  # where processes do not see each other's files, say: everything passes the socket
        return None


def _answer(samples: BatchSource, request: _Request, arena: Arena | None) -> _Reply:
    try:
        found = samples.read(request.number, *request.more)
    except BadInput as error:
        return _Reply(request.number, code=error.code, facts=error.facts, fix=error.fix)
    batch, end = (found.rest, found.batches) if isinstance(found, PartEnd) else (found, None)
    if batch is None:
        return _Reply(request.number, end=end)
    inputs, targets = ([_to_array(tensor, arena) for tensor in part] for part in (batch.inputs, batch.targets))
    return _Reply(request.number, inputs, targets, list(batch.names), end)


def _to_array(tensor: Tensor, arena: Arena | None) -> _Array:
    plain = tensor.detach().contiguous()
    dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
    slot = arena.put(plain) if arena is not None and dtype in DTYPES else None
    if slot is not None:
        return _Array(dtype, shape, slot=slot)
    return _Array(dtype, shape, plain.view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")


def _send(to: socket.socket, data: bytes) -> None:
    to.sendall(len(data).to_bytes(_LENGTH_BYTES, "little"))
    to.sendall(data)


def _receive(source: socket.socket) -> bytearray:
    return _receive_exactly(source, int.from_bytes(_receive_exactly(source, _LENGTH_BYTES), "little"))


def _receive_exactly(source: socket.socket, count: int) -> bytearray:
    """Return so many bytes. ConnectionError where the other end is closed before."""
    data, at = bytearray(count), 0
    while at < count:
        received = source.recv_into(memoryview(data)[at:])
        if not received:
            raise ConnectionError("the other end is closed")
        at += received
    return data
