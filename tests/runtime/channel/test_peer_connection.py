"""A link that breaks or falls silent is found, with both its ends, however little is sent over it."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from busy import stretch
from relay import Relay

from cutset.errors import NetworkError
from cutset.runtime.channel import peer_connection
from cutset.runtime.channel.channel import CONNECTION_LOST, DIRECTORY, make_directory
from cutset.runtime.channel.curve import make_keys
from cutset.runtime.channel.message import Message
from cutset.runtime.channel.peer_connection import PLAIN_BUFFER_BYTES
from cutset.runtime.channel.zmq_channel import ZmqChannel

NAMES = ["a", "b", "launcher"]
FOUND_S = 8.0


@pytest.fixture
def roles() -> Iterator[dict[str, ZmqChannel]]:
    """Three channels; the launcher knows the others, and they know it."""
    keys = make_keys(NAMES)
    with ExitStack() as stack:
        opened = {name: stack.enter_context(ZmqChannel(name, "job", keys[name])) for name in NAMES}
        opened["launcher"].introduce({name: opened[name].endpoint for name in ("a", "b")})
        yield opened


@pytest.fixture
def relay(roles: dict[str, ZmqChannel]) -> Iterator[Relay]:
    """The way from a to b; one message has passed."""
    a, b = roles["a"], roles["b"]
    with Relay(b.endpoint) as way:
        a.introduce({"b": way.endpoint})
        a.send("b", Message("hello"))
        assert b.receive(10).kind == "hello"
        a.poll()
        yield way


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("how", ["cut", "swallow"])
@pytest.mark.run
def test_a_broken_link_is_an_error_that_names_both_ends(roles: dict[str, ZmqChannel], relay: Relay, how: str) -> None:
    getattr(relay, how)()
    began = time.monotonic()
    with pytest.raises(
        NetworkError, match=r"the connection from a to b \(tcp://127.0.0.1:\d+\) broke \d.\d s ago"
    ) as caught:
        roles["a"].receive(20)
    assert time.monotonic() - began < stretch(FOUND_S)
    assert caught.value.code == "E514"
    assert "the machines of a and b" in caught.value.fix


@pytest.mark.parametrize("how", ["cut", pytest.param("swallow", marks=pytest.mark.slow)])
@pytest.mark.run
def test_the_launcher_is_told_and_the_role_goes_on(roles: dict[str, ZmqChannel], relay: Relay, how: str) -> None:
    a, b, launcher = roles.values()
    a.introduce({"launcher": launcher.endpoint})
    getattr(relay, how)()
    b.introduce({"a": a.endpoint})
    deadline = time.monotonic() + FOUND_S
    while (told := launcher.poll()) is None:
        assert time.monotonic() < deadline
        assert a.poll() is None
        a.wait(0.1)
    assert (told.kind, told.sender, told.body["peer"], told.body["code"]) == (CONNECTION_LOST, "a", "b", "E514")
    b.send("a", Message("still here"))
    assert a.receive(10).kind == "still here"


@pytest.mark.run
def test_a_launcher_tells_itself(roles: dict[str, ZmqChannel]) -> None:
    launcher, b = roles["launcher"], roles["b"]
    launcher.send("b", Message("hello"))
    assert b.receive(10).kind == "hello"
    launcher.poll()
    b.close()
    told = launcher.receive(FOUND_S)
    assert (told.kind, told.sender, told.body["peer"]) == (CONNECTION_LOST, "launcher", "b")


@pytest.mark.run
def test_a_link_that_never_comes_up_is_lost_too(roles: dict[str, ZmqChannel], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_connection, "CONNECT_S", 3.0)
    a, b = roles["a"], roles["b"]
    with Relay(b.endpoint) as way:
        way.swallow()
        a.introduce({"b": way.endpoint})
        a.send("b", Message("hello"))
        with pytest.raises(
            NetworkError, match=r"the connection from a to b \(.*\) did not come up in \d.\d s: shaking hands"
        ):
            a.receive(FOUND_S)


@pytest.mark.slow
def test_an_idle_link_and_a_large_frame_break_nothing(roles: dict[str, ZmqChannel], relay: Relay) -> None:
    import torch

    a, b = roles["a"], roles["b"]
    for _ in range(3):
        a.send("b", Message("large", tensors=(torch.zeros(1 << 22),)))
        assert b.receive(10).bytes == 4 << 22
    with pytest.raises(NetworkError, match="no message came"):
        a.receive(6.0)


def test_a_gap_is_told_to_the_launcher_and_what_follows_is_not_read(roles: dict[str, ZmqChannel]) -> None:
    a, b, launcher = roles.values()
    a.introduce({"b": b.endpoint})
    b.introduce({"launcher": launcher.endpoint})
    a.send("b", Message("first"))
    a._numbers.count_sent("b", Message("lost"))
    for _ in range(2):
        a.send("b", Message("later"))
    assert b.receive(10).kind == "first"
    with pytest.raises(NetworkError, match="no message came"):
        b.receive(0.5)
    told = launcher.receive(10)
    assert (told.sender, told.body["peer"], told.body["code"]) == ("b", "a", "E502")
    assert "b got message 2 of a and expected 1" in told.body["facts"]


@pytest.mark.run
def test_what_is_sent_to_one_that_is_gone_is_counted(roles: dict[str, ZmqChannel]) -> None:
    a, b, launcher = roles.values()
    a.introduce({"b": b.endpoint})
    b.introduce({"a": a.endpoint})
    a.send("b", Message("hello"))
    assert b.receive(10).kind == "hello"
    launcher.send("a", make_directory(gone=["b"]))
    with pytest.raises(NetworkError, match="no message came"):
        a.receive(0.5)
    a.send("b", Message("are you there?"))
    b.send("a", Message("not any more"))
    with pytest.raises(NetworkError, match="no message came"):
        a.receive(0.5)
    assert a.statistics()["b"]["undelivered"] == 1


def test_an_answer_waits_until_it_is_known_where_to(roles: dict[str, ZmqChannel]) -> None:
    a, b, launcher = roles.values()
    a.introduce({"b": b.endpoint})
    a.send("b", Message("question"))
    assert b.receive(10).kind == "question"
    b.send("a", Message("answer"))
    launcher.send("b", make_directory(joined={"a": a.endpoint}))
    with pytest.raises(NetworkError, match="no message came"):
        b.receive(0.5)
    assert a.receive(10).kind == "answer"


def test_only_the_launcher_says_who_is_gone(roles: dict[str, ZmqChannel]) -> None:
    a, b, _ = roles.values()
    b.introduce({"a": a.endpoint})
    b.send("a", make_directory(gone=["launcher"]))
    assert a.receive(10).kind == DIRECTORY


@pytest.mark.parametrize("encrypted", [True, False])
def test_the_kernel_is_left_to_buffer_what_is_encrypted(encrypted: bool) -> None:
    """The rest stays on this host, where less is quicker."""
    keys = make_keys(["a", "b"])
    with ZmqChannel("a", "job", keys["a"], encrypted=encrypted) as a:
        a.introduce({"b": "tcp://127.0.0.1:9"})
        link = a.open_connection("b")
        size = link._socket.sndbuf
        link.close(linger_ms=0)
    assert size == (-1 if encrypted else PLAIN_BUFFER_BYTES)  # -1: the default of the kernel
