"""Bytes through a `ByteStream`: all of them in order, few on the way, and an end where a message is missing."""

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest
import zmq

from cutset.runtime.joining.byte_stream import DATA, PIECE_BYTES, WINDOW, ByteStream

READY = zmq.POLLIN | zmq.POLLOUT


class Ends:
    """Two streams whose messages are kept until they are delivered."""

    def __init__(self) -> None:
        (self.left, a), (self.right, b) = socket.socketpair(), socket.socketpair()
        self.left.setblocking(False)
        self.right.setblocking(False)
        self.to_right: list[list[bytes]] = []
        self.to_left: list[list[bytes]] = []
        self.a, self.b = ByteStream(a, self.to_right.append), ByteStream(b, self.to_left.append)

    def deliver(self) -> None:
        """All that was sent arrives, and both go on."""
        while self.to_right:
            self.b.take(*self.to_right.pop(0))
        while self.to_left:
            self.a.take(*self.to_left.pop(0))
        for stream in (self.a, self.b):
            stream.pump({stream.local: READY})

    def close(self) -> None:
        """Close all sockets."""
        for each in (self.left, self.right, self.a.local, self.b.local):
            each.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def receive(end: socket.socket, limit: int = 1 << 16) -> bytes:
    try:
        return end.recv(limit)
    except BlockingIOError:
        return b""


@pytest.mark.parametrize("step", [1 << 16, 777])
def test_all_bytes_come_in_order(ends: Ends, step: int) -> None:
    data = os.urandom(3 * WINDOW * PIECE_BYTES if step == 1 << 16 else 100_000)
    sent, received = 0, bytearray()
    while len(received) < len(data):
        if sent < len(data):
            with contextlib.suppress(BlockingIOError):
                sent += ends.left.send(data[sent : sent + step])
        ends.deliver()
        received += receive(ends.right)
    assert received == data


def test_who_does_not_read_holds_the_other_up(ends: Ends) -> None:
    for _ in range(20 * WINDOW):
        with contextlib.suppress(BlockingIOError):
            ends.left.send(bytes(PIECE_BYTES))
        ends.deliver()
    assert len(ends.b._pending) <= WINDOW
    assert not ends.a.flags & zmq.POLLIN


def test_a_missing_message_is_the_end(ends: Ends) -> None:
    ends.b.take(DATA, b"1", b"the second")
    assert ends.b.ended
    assert ends.right.recv(10) == b""


@pytest.mark.parametrize("message", [(b"what", b"", b""), (DATA, b"x", b""), (b"end", b"", b"")])
def test_what_is_no_message_is_the_end(ends: Ends, message: tuple[bytes, bytes, bytes]) -> None:
    ends.b.take(*message)
    assert ends.b.ended
    ends.b.take(DATA, b"0", b"too late")
    assert ends.right.recv(10) == b""


def test_the_end_of_one_side_is_that_of_the_other(ends: Ends) -> None:
    ends.left.close()
    ends.deliver()
    ends.deliver()
    assert ends.b.ended
    assert ends.right.recv(10) == b""
