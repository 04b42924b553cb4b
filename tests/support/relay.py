"""A `Relay` between two processes: a TCP connection through it can be cut, or swallow all that is sent."""

import contextlib
import selectors
import socket
import struct
import threading
from types import TracebackType
from urllib.parse import urlsplit

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, no seconds; what is closed so is reset


class Relay:
    """Passes bytes on between whoever connects to `endpoint` and `target`, both of the form tcp://host:port.

    It runs in a thread of its own until it is closed.
    """

    def __init__(self, target: str) -> None:
        address = urlsplit(target)
        self._target = (address.hostname, address.port)
        self._swallows = self._refuses = self._ended = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._bell, self._rung = socket.socketpair()
        self._others: dict[socket.socket, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._rung, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="relay")
        self._thread.start()

    def swallow(self) -> None:
        """From now on nothing arrives, and nobody is told: a black hole."""
        self._swallows = True

    def cut(self) -> None:
        """Reset every connection, and each that is made from now on."""
        self._refuses = True
        self._bell.send(b"!")

    def close(self) -> None:
        self._ended = True
        self._bell.send(b"!")
        self._thread.join()
        for one in (*self._others, self._listener, self._bell, self._rung):
            one.close()
        self._selector.close()

    def __enter__(self) -> "Relay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select():
                self._serve(key.fileobj)  # type: ignore[arg-type]

    def _serve(self, ready: socket.socket) -> None:
        if ready is self._rung:
            ready.recv(1)
            if self._refuses:
                for one in list(self._others):
                    self._drop(one)
        elif ready is self._listener:
            self._accept()
        elif ready in self._others:
            self._pass_on(ready)

    def _accept(self) -> None:
        one = self._listener.accept()[0]
        if self._refuses:
            _reset(one)
            return
        try:
            other = socket.create_connection(self._target, timeout=5.0)
        except OSError:
            _reset(one)
            return
        other.settimeout(None)
        self._others |= {one: other, other: one}
        for end in (one, other):
            self._selector.register(end, selectors.EVENT_READ)

    def _pass_on(self, ready: socket.socket) -> None:
        try:
            data = ready.recv(1 << 20)
            if data and not self._swallows:
                self._others[ready].sendall(data)
        except OSError:
            data = b""
        if not data and not self._swallows:
            self._drop(ready)
        elif not data:
            self._selector.unregister(ready)

    def _drop(self, one: socket.socket) -> None:
        for end in (one, self._others.get(one)):
            if end is not None and self._others.pop(end, None) is not None:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(end)
                _reset(end)


def _reset(one: socket.socket) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    one.close()
