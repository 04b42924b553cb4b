"""Channels of one host send small messages by local sockets, in order with those by the network."""

import time
from collections import Counter

import pytest
import torch
from host_channels import Opener, pair, to_and_fro

from cutset.errors import NetworkError
from cutset.runtime.channel.channel import SilenceError
from cutset.runtime.channel.message import Message, encode
from cutset.runtime.channel.same_host import SHARED_MEMORY, SameHostPeers
from cutset.runtime.channel.zmq_channel import ZmqChannel


def test_messages_keep_their_order_by_either_way(opened: Opener) -> None:
    """Small ones by a local socket, which are faster, and those with a large body by the network."""
    a, b = pair(opened)
    join_by_sockets(a, b)
    sizes = [100_000 if i % 5 == 0 else 10 for i in range(200)]
    ways = count_ways(a)
    for step, size in enumerate(sizes):
        a.send("b", Message("x", step, body={"text": "y" * size}))
    found = [b.receive(10) for _ in sizes]
    assert [(one.step, len(one.body["text"])) for one in found] == list(enumerate(sizes))
    assert (ways[True], ways[False]) == (160, 40)
    assert not b._arrivals._early
    to_and_fro(a, b, 1)


def test_what_a_full_socket_does_not_take_goes_by_the_network(opened: Opener) -> None:
    a, b = pair(opened)
    join_by_sockets(a, b)
    ways, count = count_ways(a), 1000
    for step in range(count):
        a.send("b", Message("x", step, body={"text": "y" * 2000}))
    assert [b.receive(10).step for _ in range(count)] == list(range(count))
    assert ways[True] > 10
    assert ways[False] > 10


def test_a_message_that_is_missing_on_both_ways_is_lost(opened: Opener) -> None:
    a, b = pair(opened)
    join_by_sockets(a, b)
    a._numbers.count_sent("b", Message("lost"))
    a.send("b", Message("x", body={"text": "y"}))
    with pytest.raises(SilenceError, match=r"messages that others before them are missing of: 1 of a from \d on"):
        b.receive(0.5)
    expect_loss(a, b, "2 lost or overtaken")


def test_a_message_that_the_network_has_lost_is_lost_at_once(opened: Opener) -> None:
    a, b = pair(opened)
    join_by_sockets(a, b)
    a.send("b", Message("x", 1))
    a._numbers.count_sent("b", Message("lost"))
    assert b.receive(10).step == 1
    expect_loss(a, b, "1 lost or overtaken")


def test_what_overtook_others_of_one_whose_connection_broke_is_read(opened: Opener) -> None:
    """It was sent before that: a role that has ended, say."""
    a, b = pair(opened)
    join_by_sockets(a, b)
    b._incomplete.add("a")
    for step in range(40):
        a.send("b", Message("x", step, body={"text": "y" * (100_000 if step % 2 else 1)}))
    assert [b.receive(10).step for _ in range(40)] == list(range(40))


def test_what_waits_of_one_that_has_ended_is_dropped(opened: Opener) -> None:
    a, b = pair(opened)
    join_by_sockets(a, b)
    a._numbers.count_sent("b", Message("lost"))
    a.send("b", Message("x"))
    with pytest.raises(SilenceError):
        b.receive(0.2)
    assert b._arrivals._early
    b.forget("a")
    assert not b._arrivals._early


def test_only_the_peer_itself_may_send_by_its_socket(opened: Opener) -> None:
    a, b = pair(opened)
    join_by_sockets(a, b)
    forged = encode(Message("x"), job="job", sender="c", sequence=0)
    assert a._same_host.sockets.send("b", bytes(forged[0]))
    assert a._same_host.sockets.send("b", b"nonsense")
    a.send("b", Message("y"))
    assert b.receive(10).kind == "y"
    assert b.statistics()["a"]["malformed"] == 2


def test_another_host_is_not_asked_for_a_socket() -> None:
    here, without = SameHostPeers("10.0.0.1"), SameHostPeers("10.0.0.1", size=0)
    assert here.ask_for_socket("b", "tcp://10.0.0.2:1") is None
    assert without.ask_for_socket("b", "tcp://10.0.0.1:1") is None
    assert here.ask_for_socket("b", "tcp://10.0.0.1:1") is not None
    assert here.ask_for_socket("b", "tcp://10.0.0.1:1") is None, "once"
    question = Message(SHARED_MEMORY, body={"socket": {}}, sender="b")
    assert without.handle(question) is None, "nothing is shared"
    assert here.handle(question) is not None
    assert here.handle(question) is None, "answered once"
    here.close()


@pytest.mark.parametrize("body", [None, 5, "x", [], ["x"], ["x", 3], [1, 2, 3], {"name": "x"}, ["", "0" * 64]])
def test_an_address_that_is_nonsense_leads_nowhere(body: object) -> None:
    here = SameHostPeers("127.0.0.1")
    assert here.ask_for_socket("a", "tcp://127.0.0.1:1") is not None
    assert here.handle(Message(SHARED_MEMORY, body={"socket": body}, sender="a")) is None
    assert not here.sockets.send("a", b"x")
    here.close()


def test_an_address_that_nobody_asked_for_is_not_used(opened: Opener) -> None:
    a, b = pair(opened)
    address = b._same_host.sockets.admit("a")
    assert address is not None
    unasked = Message(SHARED_MEMORY, body={"socket": list(address)}, sender="b")
    assert a._same_host.handle(unasked) is None
    assert not a._same_host.sockets._opening
    assert a._same_host.ask_for_socket("b", b.endpoint) is not None
    for _ in range(2):
        assert a._same_host.handle(unasked) is None
    assert list(a._same_host.sockets._opening) == ["b"]


def expect_loss(a: ZmqChannel, b: ZmqChannel, words: str) -> None:
    """Send a message by the network, with which the second channel finds that one before it is lost."""
    a.send("b", Message("x", body={"text": "y" * 100_000}))
    with pytest.raises(NetworkError, match=words) as caught:
        b.receive(10)
    assert caught.value.code == "E502"


def join_by_sockets(a: ZmqChannel, b: ZmqChannel) -> None:
    """Exchange small tensors until small messages of the first need no network."""
    deadline = time.monotonic() + 10
    while "b" not in a._same_host.sockets._open:
        assert time.monotonic() < deadline
        a.send("b", Message("hello", tensors=(torch.ones(1),)))
        assert b.receive(10).kind == "hello"
        b.wait(0.05)
        assert b.poll() is None
        a.wait(0.05)
        assert a.poll() is None


def count_ways(channel: ZmqChannel) -> Counter[bool]:
    """Count the messages that a channel sends from now on, by whether they go by a socket."""
    ways, send = Counter[bool](), channel.send
    by_socket = channel._same_host.sockets.send
    taken = list[bool]()

    def watch(peer: str, packet: bytes) -> bool:
        taken.append(by_socket(peer, packet))
        return taken[-1]

    def count(peer: str, message: Message) -> Message:
        taken.clear()
        sent = send(peer, message)
        ways[any(taken)] += 1
        return sent

    channel._same_host.sockets.send = watch  # type: ignore[method-assign]
    channel.send = count  # type: ignore[method-assign]
    return ways
