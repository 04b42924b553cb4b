"""Local sockets: packets arrive whole and in order, from whom they were admitted from, and from nobody else."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from cutset.runtime import local_sockets
from cutset.runtime.local_sockets import MAX_PACKET_BYTES, MAX_STRANGERS, Address, LocalSockets

ENDS = ("a", "b")


@pytest.fixture
def ends() -> Iterator[tuple[LocalSockets, LocalSockets]]:
    with ExitStack() as stack:
        a, b = (stack.enter_context(closing(LocalSockets())) for _ in ENDS)
        yield a, b


def read(end: LocalSockets) -> list[tuple[str, bytes]]:
    found = []
    while (arrived := end.receive()) is not None:
        found.append((arrived[0], bytes(arrived[1])))
    return found


def connect(a: LocalSockets, b: LocalSockets, name: str = "a") -> Address:
    """Connect the first to the second."""
    address = b.admit(name)
    assert address is not None
    a.connect("b", address)
    assert not a.send("b", b"too early"), "nobody has confirmed the token"
    assert read(b) == []
    assert read(b) == [], "the connection first, then its token"
    return address


def raw(address: Address) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(f"\0{address.name}")
    made.settimeout(5)
    return made


def test_packets_arrive_whole_and_in_order(ends: tuple[LocalSockets, LocalSockets]) -> None:
    a, b = ends
    connect(a, b)
    packets = [bytes([i]) * size for i, size in enumerate((1, 3000, MAX_PACKET_BYTES, 7))]
    assert all(a.send("b", packet) for packet in packets)
    assert read(b) == [("a", packet) for packet in packets]
    assert (a.files, len(b.files)) == ([], 1)


def test_both_ways_are_apart(ends: tuple[LocalSockets, LocalSockets]) -> None:
    a, b = ends
    connect(a, b)
    back = a.admit("b")
    assert back is not None
    assert not b.send("a", b"x"), "the way there is not the way back"
    b.connect("a", back)
    assert read(a) == read(a) == []
    assert b.send("a", b"x")
    assert a.send("b", b"y")
    assert (read(a), read(b)) == ([("b", b"x")], [("a", b"y")])


def test_a_packet_that_is_too_large_is_not_sent(ends: tuple[LocalSockets, LocalSockets]) -> None:
    a, b = ends
    connect(a, b)
    assert not a.send("b", bytes(MAX_PACKET_BYTES + 1))
    assert not a.send("b", b""), "it would read as the end"
    assert not a.send("c", b"nobody")
    assert a.send("b", b"x")
    assert read(b) == [("a", b"x")]


def test_a_full_socket_takes_no_more_until_it_is_read(ends: tuple[LocalSockets, LocalSockets]) -> None:
    a, b = ends
    connect(a, b)
    sent = 0
    while a.send("b", sent.to_bytes(4, "big") * 1000):
        sent += 1
        assert sent < 10_000
    assert sent > 3
    assert [int.from_bytes(packet[:4], "big") for _, packet in read(b)] == list(range(sent))
    assert a.send("b", b"again")
    assert read(b) == [("a", b"again")]


@pytest.mark.parametrize("first", [b"", b"nonsense", b"\xff" * 64, b"0" * 64])
def test_who_has_not_the_token_is_not_heard(ends: tuple[LocalSockets, LocalSockets], first: bytes) -> None:
    _, b = ends
    address = b.admit("a")
    assert address is not None
    with raw(address) as stranger:
        stranger.send(first)
        stranger.send(b"a packet")
        assert read(b) == read(b) == []
        with pytest.raises(ConnectionError):
            stranger.send(b"more")


def test_a_token_is_for_one_connection(ends: tuple[LocalSockets, LocalSockets]) -> None:
    a, b = ends
    address = connect(a, b)
    assert a.send("b", b"x")
    with raw(address) as second:
        second.send(address.token.encode())
        assert read(b) == [("a", b"x")]
        read(b)
        assert second.recv(10) == b"", "closed"
    first, other = b.admit("c"), b.admit("c")
    assert first is not None
    assert other is not None
    with raw(first) as late:
        late.send(first.token.encode())
        read(b)
        read(b)
        assert late.recv(10) == b"", "the later token has replaced it"


def test_who_is_refused_loses_nothing(ends: tuple[LocalSockets, LocalSockets]) -> None:
    a, b = ends
    address = b.admit("a")
    assert address is not None
    a.connect("b", address._replace(token="0" * 64))
    read(b)
    read(b)
    assert not a.send("b", b"x")
    a.connect("b", address)
    read(b)
    read(b)
    assert a.send("b", b"x")


def test_another_user_is_not_heard(ends: tuple[LocalSockets, LocalSockets], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = ends
    monkeypatch.setattr(local_sockets.os, "geteuid", lambda: 12345)
    address = b.admit("a")
    assert address is not None
    a.connect("b", address)
    assert read(b) == read(b) == []
    assert not a.send("b", b"x")


def test_another_user_is_told_no_token(
    ends: tuple[LocalSockets, LocalSockets], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program may have taken the name of a process that has ended."""
    a, b = ends
    address = b.admit("a")
    assert address is not None
    with monkeypatch.context() as other:
        other.setattr(local_sockets.os, "geteuid", lambda: 12345)
        a.connect("b", address)
    assert not a._opening
    assert read(b) == read(b) == []
    assert not b.senders


def test_without_descriptors_nobody_else_is_accepted(ends: tuple[LocalSockets, LocalSockets]) -> None:
    """Who waits for the file would else be woken for ever."""
    a, b = ends
    connect(a, b)

    class Listener:
        def __init__(self, own: socket.socket) -> None:
            self.own, self.fileno, self.close = own, own.fileno, own.close

        def accept(self) -> None:
            raise OSError(errno.EMFILE, "too many open files")

    address = b.admit("c")
    assert address is not None
    assert b._listener is not None
    b._listener = Listener(b._listener)  # type: ignore[assignment]
    with raw(address):
        assert read(b) == []
        assert b._poller is not None
        assert b._poller.poll(0) == []
    assert a.send("b", b"x")
    assert read(b) == [("a", b"x")]
    a.forget("b")
    connect(a, b, "c")  # who asks later is told where it listens again
    assert a.send("b", b"y")
    assert read(b) == [("c", b"y")]


def test_strangers_are_few(ends: tuple[LocalSockets, LocalSockets]) -> None:
    a, b = ends
    address = b.admit("a")
    assert address is not None
    with ExitStack() as stack:
        for _ in range(MAX_STRANGERS + 5):
            stack.enter_context(raw(address))
            read(b)
        assert len(b._strangers) == MAX_STRANGERS
    read(b)
    assert not b._strangers, "all have gone"
    connect(a, b)
    assert a.send("b", b"x")


@pytest.mark.parametrize("address", [Address("nobody", "0" * 64), Address("", ""), Address("x" * 500, "0" * 64)])
def test_where_nobody_listens_there_is_no_connection(ends: tuple[LocalSockets, LocalSockets], address: Address) -> None:
    a, _ = ends
    a.connect("b", address)
    assert not a.send("b", b"x")
    assert not a._opening


def test_what_was_sent_is_read_after_its_sender_has_ended(ends: tuple[LocalSockets, LocalSockets]) -> None:
    a, b = ends
    connect(a, b)
    assert a.send("b", b"x")
    a.close()
    assert read(b) == [("a", b"x")]
    assert not b._incoming


def test_one_that_has_ended_is_sent_nothing(ends: tuple[LocalSockets, LocalSockets]) -> None:
    a, b = ends
    connect(a, b)
    assert a.send("b", b"x")
    b.close()
    assert not a.send("b", b"y")
    assert not a.send("b", b"z")


def test_one_that_is_forgotten_may_come_again(ends: tuple[LocalSockets, LocalSockets]) -> None:
    a, b = ends
    connect(a, b)
    assert a.send("b", b"x")
    a.forget("b")
    b.forget("a")
    assert not a.send("b", b"y")
    assert read(b) == [("a", b"x")]
    connect(a, b)
    assert a.send("b", b"z")
    assert read(b) == [("a", b"z")]


def test_a_system_without_such_sockets_admits_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(local_sockets.select, "epoll")
    with closing(LocalSockets()) as end:
        assert end.admit("a") is None
        assert (end.receive(), end.files) == (None, [])
