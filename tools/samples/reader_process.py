"""`ReaderProcess`: a fork of this process that reads samples; requests and batches pass a socket as plain bytes.

A fork has the dataset already, so nothing of it travels, and what comes back are dtypes, shapes and numbers.
"""

import ctypes
import os
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, NoReturn, Protocol

import msgspec
import torch
from torch import Tensor

from ...errors import BadInput, ProcessLost
from ...models.task import Data
from .part_samples import PartEnd
from .reader_demand import ReadTimes

_PR_SET_PDEATHSIG = 1  # prctl(2)
_LENGTH_BYTES = 8
_SCHEDULER_STATISTICS = Path("/proc/thread-self/schedstat")


class BatchSource(Protocol):
    """What reads batches by their numbers, and whatever else each needs. what: they are, in words."""

    what: str

    def read(self, number: int, *more: Any) -> Data | PartEnd | None:
        """Return a batch, the end of its part, or None where it is not wanted. BadInput where it cannot be read."""


class _Request(msgspec.Struct, array_like=True):
    number: int
    more: list[Any]


class _Array(msgspec.Struct, array_like=True):
    dtype: str
    shape: list[int]
    data: bytes


class _Reply(msgspec.Struct, array_like=True):
    """A batch, if there is one; or with a code the error of one that cannot be read.

    end: where it is the rest of a part, the batches that this has. queued: see `ReadTimes`.
    """

    number: int
    inputs: list[_Array] = []
    targets: list[_Array] = []
    names: list[str] = []
    end: int | None = None
    queued: float = 0.0
    code: str = ""
    facts: str = ""
    fix: str = ""


class ReaderProcess:
    """Reads the batches that it is asked for, one after the other."""

    def __init__(self, samples: BatchSource) -> None:
        self._samples, self._waiting, self._replies = samples, list[int](), dict[int, _Reply]()
        self.times = ReadTimes(0.0, 0.0)  # of the batch that was taken last
        self._socket, theirs = socket.socketpair()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: the fork uses none of them
            self.pid = os.fork()
        if not self.pid:
            self._socket.close()
            _serve(samples, theirs)
        theirs.close()

    @property
    def waiting(self) -> int:
        """How many batches were asked for and not taken."""
        return len(self._waiting)

    def request(self, number: int, *more: Any) -> None:
        """Ask for the batch of a number. more: what else the source needs for it, plain data."""
        self._waiting.append(number)
        try:
            self._send_request(msgspec.msgpack.encode(_Request(number, list(more))))
        except OSError as error:
            raise self._lost() from error

    def take(self, number: int) -> Data | PartEnd | None:
        """Wait for what was asked for. BadInput where it cannot be read, ProcessLost where the process died."""
        waited_s = 0.0
        while number not in self._replies:
            start = time.perf_counter()
            select.select([self._socket], [], [])
            waited_s += time.perf_counter() - start
            try:
                self._receive_reply()
            except OSError as error:
                raise self._lost() from error
        self._waiting.remove(number)
        reply = self._replies.pop(number)
        self.times = ReadTimes(waited_s, reply.queued)
        if reply.code:
            raise BadInput(reply.code, reply.facts, fix=reply.fix)
        inputs, targets = (tuple(map(_to_tensor, part)) for part in (reply.inputs, reply.targets))
        batch = Data(inputs, targets, tuple(reply.names)) if inputs else None
        return batch if reply.end is None else PartEnd(reply.end, batch)

    def forget(self, number: int) -> None:
        """Do not wait for a batch that was asked for any more."""
        self._waiting.remove(number)
        self._replies.pop(number, None)

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
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

    def _lost(self) -> ProcessLost:
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        ended = os.waitstatus_to_exitcode(status)
        how = f"was killed by {signal.Signals(-ended).name}" if ended < 0 else f"ended with exit code {ended}"
        facts = f"a process that read {self._samples.what} {how}"
        fix = "Task(..., loaders=0) reads it in the process that trains, as data needs that cannot be read after a fork"
        return ProcessLost("E602", facts, fix=fix)

    def __repr__(self) -> str:
        return f"ReaderProcess({self.pid}, {self._samples}, {self.waiting} waiting)"


def _serve(samples: BatchSource, ours: socket.socket) -> NoReturn:
    """Answer requests until the other end is closed, in a fork, which ends with the process that it is one of."""
    code = 0
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(1)  # threads of the other process are not here
        while True:
            try:
                request = msgspec.msgpack.decode(_receive(ours), type=_Request)
            except ConnectionError:
                break
            start, queued_s = time.perf_counter(), _read_queued_s()
            reply = _answer(samples, request)
            reply.queued = (_read_queued_s() - queued_s) / (time.perf_counter() - start)
            _send(ours, msgspec.msgpack.encode(reply))
    except BaseException:  # nothing above may go on in a fork, whatever happens
        traceback.print_exc()
        sys.stderr.flush()
        code = 1
    os._exit(code)


def _read_queued_s() -> float:
    """Return the seconds that this thread has been ready to run while other threads had the cores; 0 if none says."""
    try:
        return int(_SCHEDULER_STATISTICS.read_text().split()[1]) / 1e9
    except FileNotFoundError:  # of a kernel without scheduler statistics
        return 0.0


def _answer(samples: BatchSource, request: _Request) -> _Reply:
    try:
        found = samples.read(request.number, *request.more)
    except BadInput as error:
        return _Reply(request.number, code=error.code, facts=error.facts, fix=error.fix)
    batch, end = (found.rest, found.batches) if isinstance(found, PartEnd) else (found, None)
    if batch is None:
        return _Reply(request.number, end=end)
    inputs, targets = ([_to_array(tensor) for tensor in part] for part in (batch.inputs, batch.targets))
    return _Reply(request.number, inputs, targets, list(batch.names), end)


def _to_array(tensor: Tensor) -> _Array:
    plain = tensor.detach().contiguous()
    data = plain.view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return _Array(str(tensor.dtype).removeprefix("torch."), list(tensor.shape), data)


def _to_tensor(array: _Array) -> Tensor:
    dtype = getattr(torch, array.dtype)
    if not array.data:
        return torch.empty(array.shape, dtype=dtype)
    return torch.frombuffer(bytearray(array.data), dtype=dtype).view(array.shape)


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
