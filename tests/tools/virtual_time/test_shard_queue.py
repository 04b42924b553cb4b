"""Shards that are busy."""

import math

from cutset.runtime.channel.message import Message
from cutset.tools.virtual_time.network import VirtualNetwork
from cutset.tools.virtual_time.shard_queue import ShardQueue
from cutset.tools.virtual_time.world import World


class Echo:
    """Answers every message."""

    def handle(self, message: Message) -> list[tuple[str, Message]]:
        return [(message.sender, Message("answer", message.step))]


def test_messages_wait_while_the_shard_is_busy() -> None:
    world, answers = World(0), list[tuple[int, float]]()
    network = VirtualNetwork(world, latency_s=1.0)
    queue = ShardQueue("shard-0", Echo(), network, bandwidth=math.inf, service_s=lambda message: 5.0)
    network.connect("a", math.inf, lambda message: answers.append((message.step, world.now)))
    for step in (1, 2):
        network.send("a", "shard-0", Message("question", step))
    world.run(lambda: len(answers) == 2)
    assert answers == [(1, 7.0), (2, 12.0)]
    assert (queue.busy_s, queue.longest) == (10.0, 2)
