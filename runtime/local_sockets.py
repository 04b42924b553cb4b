"""`LocalSockets`: sockets by which one process passes small packets to others of its host, without a thread between.

A message by TCP passes an I/O thread at either end, and is encrypted: some hundred microseconds, and as much of the
cores' time. A Unix socket of the kind SOCK_SEQPACKET keeps packets whole and in order, and the kernel wakes who waits
for one. Its name is in the abstract namespace of Linux: there is no file that could be left behind. Who connects must
be of the same user, as must who listens, and names as its first packet a token that it was told over an encrypted
connection; it sends no other packet before that is confirmed, so that none is lost where it is refused.
"""

import errno
import os
import secrets
import select
import socket
import struct
from collections import deque
from contextlib import ExitStack
from typing import NamedTuple

MAX_PACKET_BYTES = 32 << 10  # a larger one is no small message, and several would fill a socket's buffer
MAX_STRANGERS = 64  # connections that have not named their token yet
_TOKEN_BYTES, _NAME_BYTES, _BACKLOG = 32, 16, 64
_CREDENTIALS = struct.Struct("3i")  # process, user, group: struct ucred of unix(7)
_CONFIRMED = b"\1"
_NOT_NOW = (errno.EAGAIN, errno.ENOBUFS, errno.EMSGSIZE)


class Address(NamedTuple):
    """Where a process listens for another one, and what that is to say."""

    name: str
    token: str


class LocalSockets:
    """The sockets of one process to peers of its host and from them. It belongs to one thread.

    senders: the peers that have connected, and may have sent what is still to be read.
    """

    def __init__(self) -> None:
        self.senders: set[str] = set()
        self._poller: select.epoll | None = None  # made for the first peer that may connect
        self._listener: socket.socket | None = None
        self._name = ""
        self._tokens: dict[str, str] = {}  # that are to come yet, with the peers that were told them
        self._strangers: dict[int, socket.socket] = {}  # by file descriptor: who has said nothing yet
        self._incoming: dict[int, tuple[str, socket.socket]] = {}
        self._opening: dict[str, socket.socket] = {}  # by peer: whose token is not confirmed yet
        self._open: dict[str, socket.socket] = {}
        self._buffer = bytearray(MAX_PACKET_BYTES + 1)
        self._view = memoryview(self._buffer)
        self._readable: deque[int] = deque()

    @property
    def files(self) -> list[int]:
        """What is readable when something has arrived."""
        return [] if self._poller is None else [self._poller.fileno()]

    def admit(self, peer: str) -> Address | None:
        """Admit one connection of a peer; return what it needs for that, None where this system has no such sockets."""
        if self._listener is None and not self._listen():
            return None
        self._tokens = {token: other for token, other in self._tokens.items() if other != peer}
        token = secrets.token_hex(_TOKEN_BYTES)
        self._tokens[token] = peer
        return Address(self._name, token)

    def connect(self, peer: str, address: Address) -> None:
        """Connect to a peer that listens; where that fails, there is no connection."""
        try:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except (AttributeError, OSError):  # another system
            return
        try:
            made.setblocking(False)
            made.connect(f"\0{address.name}")
            is_ours = _read_user(made) == os.geteuid()  # the name may be another program's by now
            if is_ours:
                made.send(address.token.encode())
        except (OSError, ValueError):  # another host or name space, or nonsense
            is_ours = False
        if is_ours:
            self._opening[peer] = made
        else:
            made.close()

    def send(self, peer: str, packet: bytes | bytearray | memoryview) -> bool:
        """Send a packet to a peer; False where there is no connection, or it can take no more, or none of this size.

        An empty one would read as the end.
        """
        to = self._open.get(peer) or (self._confirm(peer) if self._opening else None)
        if to is None or not 0 < len(packet) <= MAX_PACKET_BYTES:
            return False
        try:
            to.send(packet)
        except OSError as error:
            if error.errno not in _NOT_NOW:  # the peer has ended, or let go of us
                self._open.pop(peer).close()
            return False
        return True

    def receive(self) -> tuple[str, memoryview] | None:
        """Return the sender of the next packet, and the packet; None if there is none.

        What a packet lies in is overwritten by the next one.
        """
        if self._poller is None:
            return None
        if not self._readable:
            self._readable.extend(file for file, _ in self._poller.poll(0))
        while self._readable:
            file = self._readable.popleft()
            if file in self._incoming:
                peer, source = self._incoming[file]
                size = self._read(source)
                if size:
                    return peer, self._view[:size]
                if size == 0:
                    self._drop(file)
            elif file in self._strangers:
                self._identify(file)
            else:
                self._accept()
        return None

    def forget(self, peer: str) -> None:
        """Let go of the connections to a peer that has ended, and from it once what it has sent is read."""
        self.senders.discard(peer)
        self._tokens = {token: other for token, other in self._tokens.items() if other != peer}
        for sockets in (self._opening, self._open):
            to = sockets.pop(peer, None)
            if to is not None:
                to.close()

    def close(self) -> None:
        """Close all. What was sent can still be read."""
        incoming = [source for _, source in self._incoming.values()]
        for one in (*self._opening.values(), *self._open.values(), *self._strangers.values(), *incoming):
            one.close()
        for sockets in (self._opening, self._open, self._strangers, self._incoming):
            sockets.clear()
        if self._listener is not None:
            self._listener.close()
        if self._poller is not None:
            self._poller.close()
        self._listener = self._poller = None

    def __repr__(self) -> str:
        incoming = [peer for peer, _ in self._incoming.values()]
        return f"LocalSockets(to {sorted(self._open)}, from {sorted(incoming)})"

    def _confirm(self, peer: str) -> socket.socket | None:
        """Return the connection to a peer once that has confirmed it."""
        made = self._opening.get(peer)
        if made is None:
            return None
        try:
            answer = made.recv(len(_CONFIRMED) + 1)
        except BlockingIOError:
            return None
        except OSError:
            answer = b""
        del self._opening[peer]
        if answer != _CONFIRMED:
            made.close()
            return None
        self._open[peer] = made
        return made

    def _listen(self) -> bool:
        name = f"cutset-{secrets.token_hex(_NAME_BYTES)}"
        with ExitStack() as undo:
            try:
                poller = self._poller or undo.enter_context(select.epoll())
                listener = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                listener.setblocking(False)
                listener.bind(f"\0{name}")
                listener.listen(_BACKLOG)
            except (AttributeError, OSError):  # another system
                return False
            undo.pop_all()
        poller.register(listener.fileno(), select.EPOLLIN)
        self._listener, self._poller, self._name = listener, poller, name
        return True

    def _accept(self) -> None:
        """Accept a connection of this user's."""
        assert self._listener is not None
        assert self._poller is not None
        try:
            stranger, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # no descriptor is left: who waits would be told for ever that somebody is there
            self._poller.unregister(self._listener.fileno())
            self._listener.close()
            self._listener = None
            return
        if _read_user(stranger) != os.geteuid() or len(self._strangers) == MAX_STRANGERS:
            stranger.close()
            return
        stranger.setblocking(False)
        self._strangers[stranger.fileno()] = stranger
        self._poller.register(stranger.fileno(), select.EPOLLIN)

    def _identify(self, file: int) -> None:
        """Read the token of a connection; one that has a wrong one is closed."""
        size = self._read(self._strangers[file])
        if size is None:
            return
        token = bytes(self._view[:size]).decode("ascii", "replace")
        peer = self._tokens.pop(token, None)
        if peer is None:
            self._drop(file)
            return
        source = self._strangers.pop(file)
        self._incoming[file] = peer, source
        self.senders.add(peer)
        try:
            source.send(_CONFIRMED)
        except OSError:  # gone meanwhile
            self._drop(file)

    def _read(self, source: socket.socket) -> int | None:
        """Read a packet into the buffer; return its size: 0 at the end, None where there is none yet."""
        try:
            return source.recv_into(self._buffer)
        except BlockingIOError:
            return None
        except OSError:
            return 0

    def _drop(self, file: int) -> None:
        """Close a connection from somebody."""
        assert self._poller is not None
        self._poller.unregister(file)
        gone = self._strangers.pop(file, None) or self._incoming.pop(file)[1]
        gone.close()


def _read_user(connection: socket.socket) -> int:
    """Return the user at the other end of a connection."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])
