"""`ByteStream`: one end of a stream of bytes whose other end is behind messages, of which few are on the way."""

import contextlib
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import zmq

DATA, TAKEN, END = b"data", b"taken", b"end"
PIECE_BYTES, WINDOW = 1 << 16, 32  # of a message, and how many may be on the way

Send = Callable[[list[bytes]], object]


class ByteStream:
    """Pumps bytes between a local socket, which does not block, and messages.

    Data messages are numbered: where one is missing, since a connection broke and came back, the stream has ended.
    """

    def __init__(self, local: socket.socket, send: Send) -> None:
        local.setblocking(False)
        self.local, self._send = local, send
        self._sent = self._taken = self._received = 0
        self._pending = deque[bytes]()
        self.ended = False

    @property
    def flags(self) -> int:
        """What to poll the local socket for, 0 for nothing."""
        may_read = self._sent - self._taken < WINDOW
        return 0 if self.ended else (zmq.POLLIN if may_read else 0) | (zmq.POLLOUT if self._pending else 0)

    def pump(self, ready: Mapping[Any, int]) -> None:
        """Read and write as far as that is possible. ready: what polling has found, by socket or its number."""
        if not self.ended:
            flags = ready.get(self.local.fileno(), ready.get(self.local, 0))
            if flags & zmq.POLLOUT:
                self._write()
            if flags & (zmq.POLLIN | zmq.POLLERR) and self.flags & zmq.POLLIN:
                self._read()

    def _read(self) -> None:
        """Send what can be read."""
        try:
            data = self.local.recv(PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._send([END, b"", b""])
            self.end()
            return
        self._send([DATA, str(self._sent).encode(), data])
        self._sent += 1

    def _write(self) -> None:
        """Hand on what has come, and say that it was taken."""
        while self._pending:
            try:
                count = self.local.send(self._pending[0])
            except BlockingIOError:
                return
            except OSError:
                self._send([END, b"", b""])
                self.end()
                return
            if count < len(self._pending[0]):
                self._pending[0] = self._pending[0][count:]
                return
            self._pending.popleft()
            self._send([TAKEN, b"", b""])

    def take(self, kind: bytes, number: bytes, data: bytes) -> None:
        """Take a message of the other end."""
        if self.ended:
            return
        if kind == TAKEN:
            self._taken += 1
        elif kind == DATA and number == str(self._received).encode() and len(self._pending) < WINDOW:
            self._received += 1
            self._pending.append(data)
            self._write()
        else:
            self.end()

    def end(self) -> None:
        """Close the local socket: its other end reads the end of the stream."""
        self.ended = True
        self._pending.clear()
        with contextlib.suppress(OSError):
            self.local.close()

    def __repr__(self) -> str:
        return f"ByteStream({self._sent} sent, {self._received} received, ended {self.ended})"
