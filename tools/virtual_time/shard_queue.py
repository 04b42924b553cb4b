"""`ShardQueue`: a shard in virtual time. It handles one message after the other, each of which takes it a while."""

from collections.abc import Callable
from typing import Protocol

from ...ps.server.replies import Replies
from ...runtime.channel.message import Message
from .network import VirtualNetwork


class MessageHandler(Protocol):
    """What a shard does with a message: the whole protocol of `Shard`, `VectorShard` and `Coordinator`."""

    def handle(self, message: Message) -> Replies: ...


class ShardQueue:
    """Has a shard answer what arrives. service_s: returns the seconds that a message keeps the shard busy.

    busy_s: the seconds that it was busy so far. longest: the most messages that waited at a time.
    """

    def __init__(
        self,
        name: str,
        shard: MessageHandler,
        network: VirtualNetwork,
        *,
        bandwidth: float,
        service_s: Callable[[Message], float],
    ) -> None:
        self.busy_s, self.longest = 0.0, 0
        self._name, self._shard, self._network, self._service_s = name, shard, network, service_s
        self._free_s, self._waiting = 0.0, 0
        network.connect(name, bandwidth, self._take)

    def _take(self, message: Message) -> None:
        world, takes_s = self._network.world, self._service_s(message)
        begins_s = max(world.now, self._free_s)
        self._free_s = begins_s + takes_s
        self.busy_s += takes_s
        self._waiting += 1
        self.longest = max(self.longest, self._waiting)
        world.at(self._free_s - world.now, lambda: self._handle(message))

    def _handle(self, message: Message) -> None:
        self._waiting -= 1
        for peer, reply in self._shard.handle(message):
            self._network.send(self._name, peer, reply)
