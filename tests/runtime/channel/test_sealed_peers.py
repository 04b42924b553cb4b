"""Large tensors for another host come sealed, once both ends agree; all else goes over CURVE, and a forgery ends it."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import torch
import zmq
from free_ports import find_free_ports

from cutset.errors import NetworkError
from cutset.runtime.channel import sealed_peers
from cutset.runtime.channel.channel import CONNECTION_LOST, SilenceError
from cutset.runtime.channel.curve import make_keys
from cutset.runtime.channel.message import Message
from cutset.runtime.channel.zmq_channel import ZmqChannel
from cutset.runtime.sealing.sealer import AES, CHACHA, Buffer

KEYS = make_keys(["a", "b", "launcher"])
LARGE = torch.arange(1 << 18, dtype=torch.float32)
Opener = Callable[..., ZmqChannel]


@pytest.fixture
def opened() -> Iterator[Opener]:
    """Opens channels that share no memory, as on two hosts, and are closed in the end."""
    with ExitStack() as stack:
        yield lambda name, **more: stack.enter_context(ZmqChannel(name, "job", KEYS[name], shared_bytes=0, **more))


@pytest.fixture
def ends(opened: Opener) -> tuple[ZmqChannel, ZmqChannel]:
    a, b = opened("a"), opened("b")
    introduce(a, b)
    return a, b


def introduce(*channels: ZmqChannel) -> None:
    for channel in channels:
        channel.introduce({other.name: other.endpoint for other in channels if other is not channel})


def pass_one(a: ZmqChannel, b: ZmqChannel, step: int, tensor: torch.Tensor = LARGE) -> None:
    a.send("b", Message("push", step, tensors=(tensor,)))
    message = b.receive(10)
    assert message.step == step
    assert torch.equal(message.tensors[0], tensor)


def settle(a: ZmqChannel, b: ZmqChannel, *, sealed: bool = True) -> None:
    """Pass large tensors until they come sealed, or both ends have had time for it."""
    for step in range(200 if sealed else 20):
        pass_one(a, b, step)
        a.wait(0.02)
        assert a.poll() is None
        if a._sealed.connection("b"):
            break
    assert bool(a._sealed.connection("b")) == sealed


def alter(a: ZmqChannel, change: Callable[[list[bytes]], list[Buffer]]) -> None:
    """Change what goes over the sealed connection from a to b, behind the sealer."""
    connection = a._sealed.connection("b")
    assert connection is not None
    sealer = connection._sealer
    assert sealer is not None
    seal = sealer.seal
    sealer.seal = lambda frames: change([bytes(chunk) for chunk in seal(frames)])  # type: ignore[method-assign]


def test_all_arrives_in_order_while_the_sender_changes_over(ends: tuple[ZmqChannel, ZmqChannel]) -> None:
    a, b = ends
    count, sealed_from = 0, 0
    while sealed_from == 0 or count < sealed_from + 30:
        sizes = (3, 20_000, 300_001)
        a.send("b", Message("push", count, tensors=tuple(torch.full((size,), float(count)) for size in sizes)))
        a.send("b", Message("small", count + 1))
        a.poll()
        count += 2
        if count % 20 == 0:  # many messages on the way
            a.wait(0.05)
            for step in range(count - 20, count):
                message = b.receive(10)
                assert (message.step, message.kind) == (step, "small" if step % 2 else "push")
                assert all(bool((tensor == step).all()) for tensor in message.tensors)
        if sealed_from == 0 and a._sealed.connection("b"):
            sealed_from = count
        assert count < 2000
    counts = b.statistics()["a"]
    assert counts["malformed"] == counts["repeated"] == 0


def test_no_more_goes_over_curve_then_and_both_ways_are_sealed(ends: tuple[ZmqChannel, ZmqChannel]) -> None:
    a, b = ends
    settle(a, b)
    for connection in a._connections:
        connection.send = None  # type: ignore[method-assign,assignment]
    for step in range(5):
        pass_one(a, b, step, torch.full((200_000 + step,), float(step)))
        a.send("b", Message("small", step))
        assert b.receive(10).step == step
        b.send("a", Message("values", step, tensors=(LARGE,)))
        assert a.receive(10).step == step


def test_small_tensors_need_no_second_connection(ends: tuple[ZmqChannel, ZmqChannel]) -> None:
    a, b = ends
    for step in range(5):
        pass_one(a, b, step, torch.ones(100))
    assert not a._sealed._asked
    assert b._sealed._inbox is None


FORGERIES: dict[str, Callable[[list[bytes]], list[Buffer]]] = {
    "altered": lambda chunks: [*chunks[:-1], chunks[-1][:-1] + bytes([chunks[-1][-1] ^ 1])],
    "truncated": lambda chunks: [*chunks[:-1], chunks[-1][:-5]],
    "nonsense": lambda chunks: [b"x" * len(chunk) for chunk in chunks],
    "empty": lambda _: [b""],
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_what_was_changed_on_the_way_is_refused_and_said(ends: tuple[ZmqChannel, ZmqChannel], forgery: str) -> None:
    a, b = ends
    settle(a, b)
    alter(a, FORGERIES[forgery])
    a.send("b", Message("push", 1, tensors=(LARGE,)))
    with pytest.raises(NetworkError, match=r"from a to b\n  fix: somebody may have changed") as caught:
        b.receive(10)
    assert caught.value.code == "E521"
    assert b.statistics()["a"]["malformed"] == 1
    a.send("b", Message("push", 2, tensors=(LARGE,)))
    with pytest.raises(SilenceError):
        b.receive(0.3)


def test_a_message_that_comes_again_is_refused(ends: tuple[ZmqChannel, ZmqChannel]) -> None:
    a, b = ends
    settle(a, b)
    sent: list[list[bytes]] = []

    def repeat(chunks: list[bytes]) -> list[Buffer]:
        sent.append(chunks)
        return list(sent[0])

    alter(a, repeat)
    pass_one(a, b, 7)
    a.send("b", Message("push", 8, tensors=(LARGE,)))
    with pytest.raises(NetworkError, match="was altered, repeated, or is not the next one, from a to b"):
        b.receive(10)


@pytest.mark.run
def test_the_launcher_hears_of_a_forgery_and_the_role_goes_on(opened: Opener) -> None:
    a, b, launcher = opened("a"), opened("b"), opened("launcher")
    introduce(a, b, launcher)
    settle(a, b)
    alter(a, FORGERIES["altered"])
    a.send("b", Message("push", 1, tensors=(LARGE,)))
    launcher.send("b", Message("go on"))
    assert b.receive(10).kind == "go on"
    with pytest.raises(SilenceError):
        b.receive(1)
    told = launcher.receive(10)
    assert (told.kind, told.body["peer"], told.body["code"]) == (CONNECTION_LOST, "a", "E521")


@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_a_peer_that_knows_no_common_cipher_gets_all_over_curve(
    ends: tuple[ZmqChannel, ZmqChannel], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if end == "sender":
        monkeypatch.setattr(sealed_peers, "list_ciphers", lambda: ("rot13",))
    else:
        monkeypatch.setattr(sealed_peers, "choose_cipher", lambda _: None)
    settle(*ends, sealed=False)


def test_without_instructions_for_aes_both_take_the_other_cipher(
    ends: tuple[ZmqChannel, ZmqChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = ends
    offered: list[list[str]] = []

    def choose(ciphers: list[str]) -> str:
        offered.append(ciphers)
        return CHACHA

    monkeypatch.setattr(sealed_peers, "choose_cipher", choose)
    settle(a, b)
    pass_one(a, b, 3)
    assert CHACHA in offered[0]
    assert set(offered[0]) <= {AES, CHACHA}


def test_without_a_free_port_all_goes_over_curve(opened: Opener) -> None:
    first, second = find_free_ports(2)
    with socket.create_server(("127.0.0.1", first)):
        a, b = opened("a"), opened("b", host=f"127.0.0.1:{first}-{second}")
    b._sealed._host = f"127.0.0.1:{b.endpoint.rpartition(':')[2]}-{b.endpoint.rpartition(':')[2]}"
    introduce(a, b)
    settle(a, b, sealed=False)


def test_a_token_admits_one_connection_only(ends: tuple[ZmqChannel, ZmqChannel]) -> None:
    """Somebody who reads the token on its way takes the place of the sender; without the key he can say nothing."""
    a, b = ends
    a.send("b", Message("push", 0, tensors=(LARGE,)))
    assert b.receive(10).step == 0
    while not b._authenticator._tokens:
        b.wait(0.05)
        b.poll()
    [token] = b._authenticator._tokens
    assert b._sealed._inbox is not None
    endpoint = b._sealed._inbox.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
    with zmq.Context() as context, context.socket(zmq.DEALER) as thief:
        thief.linger = 2000
        thief.plain_username, thief.plain_password = b"sealed", token.encode()
        thief.connect(endpoint)
        thief.send(b"let me in")
        with pytest.raises(NetworkError, match="from a to b"):
            b.receive(10)
        settle(a, b, sealed=False)
    assert b._authenticator.refused >= 1


def test_without_a_token_nobody_enters(ends: tuple[ZmqChannel, ZmqChannel]) -> None:
    a, b = ends
    settle(a, b)
    assert b._sealed._inbox is not None
    endpoint = b._sealed._inbox.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.plain_username, stranger.plain_password = b"sealed", b"0" * 64
        with stranger.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH) as monitor:
            stranger.connect(endpoint)
            assert monitor.poll(10_000)
            stranger.disable_monitor()
    assert b._authenticator.refused >= 1
    pass_one(a, b, 1)


@pytest.mark.run
def test_a_sealed_connection_that_breaks_is_an_error(ends: tuple[ZmqChannel, ZmqChannel]) -> None:
    a, b = ends
    settle(a, b)
    assert b._sealed._inbox is not None
    b._sealed._inbox.close(0)
    b._sealed._inbox = None
    with pytest.raises(NetworkError, match=r"the connection from a to b .* broke") as caught:
        a.receive(20)
    assert caught.value.code == "E514"
