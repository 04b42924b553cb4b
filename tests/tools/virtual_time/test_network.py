"""When messages arrive."""

import math

import pytest
import torch

from cutset.runtime.channel.channel import SilenceError
from cutset.runtime.channel.message import Message
from cutset.tools.virtual_time.network import VirtualChannel, VirtualNetwork
from cutset.tools.virtual_time.world import VirtualTask, World

MEGABYTE = torch.zeros(250_000)


class Listener:
    """Notes what arrives when."""

    def __init__(self, network: VirtualNetwork, name: str, bandwidth: float) -> None:
        self.arrived: list[tuple[str, float]] = []
        self._world = network.world
        network.connect(name, bandwidth, self._take)

    def _take(self, message: Message) -> None:
        self.arrived.append((message.kind, round(self._world.now, 9)))


def deliver(network: VirtualNetwork) -> None:
    """Let all messages arrive."""
    network.world.at(1000.0, lambda: None)
    network.world.run(lambda: network.world.now >= 1000.0)


def test_a_message_takes_its_bytes_over_the_bandwidth_and_the_latency() -> None:
    network = VirtualNetwork(World(0), latency_s=0.5)
    Listener(network, "a", 1e6)
    b = Listener(network, "b", 1e6)
    network.send("a", "b", Message("large", tensors=(MEGABYTE,)))
    deliver(network)
    assert b.arrived == [("large", 1.5)]
    assert network.bytes_sent == 1_000_000


def test_the_card_of_the_sender_sends_one_message_after_the_other() -> None:
    network = VirtualNetwork(World(0))
    Listener(network, "a", 1e6)
    b, c = Listener(network, "b", math.inf), Listener(network, "c", math.inf)
    for target in ("b", "c"):
        network.send("a", target, Message("large", tensors=(MEGABYTE,)))
    deliver(network)
    assert b.arrived + c.arrived == [("large", 1.0), ("large", 2.0)]


def test_the_card_of_the_receiver_receives_one_message_after_the_other() -> None:
    network = VirtualNetwork(World(0))
    shard = Listener(network, "shard", 1e6)
    for name in ("a", "b"):
        Listener(network, name, 1e6)
        network.send(name, "shard", Message(name, tensors=(MEGABYTE,)))
    deliver(network)
    assert shard.arrived == [("a", 1.0), ("b", 2.0)]


def test_messages_of_a_pair_arrive_in_order_small_ones_of_others_are_not_held_up() -> None:
    network = VirtualNetwork(World(0), latency_s=0.1)
    shard = Listener(network, "shard", 1e6)
    for name in ("a", "b"):
        Listener(network, name, 1e6)
    network.send("a", "shard", Message("large", tensors=(MEGABYTE,)))
    network.send("a", "shard", Message("after it"))
    network.send("b", "shard", Message("small"))
    deliver(network)
    assert shard.arrived == [("small", 0.1), ("large", 1.1), ("after it", 1.1)]


def test_channels_wait_for_messages_and_give_up_in_virtual_time() -> None:
    world, heard = World(0), list[object]()
    network = VirtualNetwork(world, latency_s=2.0)

    def listen() -> None:
        channel = VirtualChannel("a", network)
        heard.append(channel.receive(10.0).kind)
        with pytest.raises(SilenceError):
            channel.receive(5.0)
        heard.append(world.now)

    def speak() -> None:
        VirtualChannel("b", network).send("a", Message("word"))

    tasks = [VirtualTask(world, "listener", listen), VirtualTask(world, "speaker", speak)]
    for task in tasks:
        task.begin()
    world.run(lambda: all(task.has_ended for task in tasks))
    assert heard == ["word", 7.0]


@pytest.mark.parametrize("copies", [True, False])
def test_borrowed_tensors_are_copied_where_they_will_be_written_again(copies: bool) -> None:
    world, values = World(0), torch.zeros(3)
    network, got = VirtualNetwork(world), list[Message]()
    network.connect("b", math.inf, got.append)

    def speak() -> None:
        channel = VirtualChannel("a", network, copies=lambda message: copies)
        channel.send("b", Message("values", tensors=(values,), borrowed=True))
        values.fill_(1.0)

    VirtualTask(world, "speaker", speak).begin()
    world.run(lambda: bool(got))
    assert got[0].tensors[0].tolist() == ([0.0] * 3 if copies else [1.0] * 3)
