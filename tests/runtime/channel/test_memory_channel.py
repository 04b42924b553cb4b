"""Scripted faults of the in-memory network: what a role sees of each, and that an abort ends every wait at once."""

import threading

import pytest
import torch

from cutset.errors import NetworkError, ProcessLost
from cutset.runtime.channel.channel import SilenceError
from cutset.runtime.channel.faults import BlackHole, Delay, Disconnect, DropMessage, Fault, Kill, Reorder, Repeat, Stop
from cutset.runtime.channel.memory_channel import MemoryChannel, MemoryNetwork
from cutset.runtime.channel.message import Message


def pair(*faults: Fault) -> tuple[MemoryChannel, MemoryChannel]:
    network = MemoryNetwork(faults)
    return network.channel("a"), network.channel("b")


def steps(channel: MemoryChannel) -> list[int]:
    """The steps of all messages that are there."""
    got = []
    while (message := channel.poll()) is not None:
        got.append(message.step)
    return got


def send(channel: MemoryChannel, peer: str, *, count: int, first: int = 0) -> None:
    for step in range(first, first + count):
        channel.send(peer, Message("forward", step))


def test_a_dropped_message_shows_as_a_gap() -> None:
    a, b = pair(DropMessage("a", "b", 2))
    send(a, "b", count=4)
    assert [b.receive(1).step, b.receive(1).step] == [0, 1]
    with pytest.raises(NetworkError, match="b got message 3 of a and expected 2: 1 lost or overtaken") as caught:
        b.receive(1)
    assert caught.value.code == "E502"


def test_a_dropped_last_message_shows_as_silence() -> None:
    a, b = pair(DropMessage("a", "b", 0))
    send(a, "b", count=1)
    with pytest.raises(SilenceError):
        b.receive(0.01)


def test_a_black_hole_swallows_one_direction() -> None:
    a, b = pair(BlackHole("a", "b", 2))
    send(a, "b", count=5)
    send(b, "a", count=3)
    assert steps(b) == [0, 1]
    assert steps(a) == [0, 1, 2]


@pytest.mark.parametrize("stop", [Stop("a", step=3), Stop("a", nth=3)])
def test_a_stopped_role_says_nothing_until_the_network_ends(stop: Stop) -> None:
    network = MemoryNetwork([stop])
    a, b = network.channel("a"), network.channel("b")
    raised: list[NetworkError] = []

    def life() -> None:
        try:
            send(a, "b", count=9)
        except NetworkError as error:
            raised.append(error)

    thread = threading.Thread(target=life)
    thread.start()
    assert [b.receive(10).step for _ in range(3)] == [0, 1, 2]
    with pytest.raises(SilenceError):
        b.receive(0.05)
    assert thread.is_alive()
    network.abort("it is enough")
    thread.join(10)
    assert "it is enough" in raised[0].facts


def test_a_repeated_message_arrives_once_and_is_counted() -> None:
    a, b = pair(Repeat("a", "b", 1, times=2))
    send(a, "b", count=3)
    assert steps(b) == [0, 1, 2]
    assert b.statistics()["a"]["repeated"] == 2
    assert b.statistics()["a"]["messages_in"] == 3


def test_a_reordered_message_shows_as_a_gap() -> None:
    a, b = pair(Reorder("a", "b", 1))
    send(a, "b", count=3)
    assert b.receive(1).step == 0
    with pytest.raises(NetworkError, match="b got message 2 of a and expected 1"):
        b.receive(1)


def test_a_delay_keeps_the_order_and_is_counted_in_messages_of_other_links() -> None:
    network = MemoryNetwork([Delay("a", "c", 1, by=2)])
    a, b, c = (network.channel(name) for name in "abc")
    send(a, "c", count=3)
    assert steps(c) == [0]
    send(b, "c", count=1, first=10)
    assert steps(c) == [10]
    send(b, "c", count=1, first=11)
    assert steps(c) == [11, 1, 2]


def test_a_delay_ends_when_everybody_waits() -> None:
    network = MemoryNetwork([Delay("a", "b", 0, by=1000)])

    def ask(channel: MemoryChannel) -> int:
        channel.send("b", Message("ask", 5))
        return channel.receive(30).step

    def answer(channel: MemoryChannel) -> None:
        channel.send("a", Message("answer", channel.receive(30).step + 1))

    assert network.run({"a": ask, "b": answer}) == {"a": 6, "b": None}


def test_a_cut_link_is_silent_both_ways_and_others_are_not() -> None:
    network = MemoryNetwork([Disconnect("a", "b", after=2)])
    a, b, c = (network.channel(name) for name in "abc")
    send(a, "b", count=1)
    send(b, "a", count=3)
    send(a, "b", count=1)
    send(a, "c", count=2)
    assert (steps(a), steps(b), steps(c)) == ([0], [0], [0, 1])


def test_a_role_is_killed_at_a_step() -> None:
    a, b = pair(Kill("a", step=2))
    send(a, "b", count=2)
    with pytest.raises(ProcessLost, match="a was killed, as scripted, at step 2"):
        send(a, "b", count=1, first=2)
    send(b, "a", count=1)  # nobody notices at once that a is gone
    assert steps(b) == [0, 1]


def test_a_role_is_killed_at_a_message_in_or_out() -> None:
    a, b = pair(Kill("b", nth=2))
    send(b, "a", count=1)
    send(a, "b", count=2)
    assert b.receive(1).step == 0
    with pytest.raises(ProcessLost, match="b was killed"):
        b.receive(1)


def test_the_first_error_ends_every_thread_and_is_raised() -> None:
    def waits(channel: MemoryChannel) -> None:
        channel.receive(60)

    def fails(channel: MemoryChannel) -> None:
        raise ZeroDivisionError("loss is 1 / 0")

    with pytest.raises(ZeroDivisionError, match="loss is"):
        MemoryNetwork().run({"a": waits, "b": waits, "c": fails})


def test_an_abort_says_why() -> None:
    network = MemoryNetwork()
    channel = network.channel("a")
    network.abort("worker 2 raised ValueError")
    network.abort("a consequence")
    for call in (lambda: channel.receive(60), channel.poll, lambda: channel.send("a", Message("x"))):
        with pytest.raises(NetworkError, match="the network was ended: worker 2 raised ValueError"):
            call()


def test_tensors_go_by_reference_unless_copied() -> None:
    tensor = torch.zeros(3)
    for copies, same in ((False, True), (True, False)):
        channel = MemoryNetwork(copies=copies).channel("a")
        channel.send("a", Message("x", tensors=(tensor,)))
        assert (channel.receive(1).tensors[0].data_ptr() == tensor.data_ptr()) is same


def test_a_name_is_given_once() -> None:
    network = MemoryNetwork()
    network.channel("a")
    with pytest.raises(ValueError, match="already a channel 'a'"):
        network.channel("a")
    assert "aborted=''" in repr(network)
