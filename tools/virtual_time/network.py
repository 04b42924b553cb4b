"""`VirtualNetwork`: messages in virtual time. They wait for the sender's card, travel, and wait for the receiver's.

A message with tensors occupies both cards for as long as its bytes take there; it arrives as it is received, so a
card of the same speed at the other end adds nothing unless it is busy. A message without tensors only travels.
"""

import math
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import msgspec
import torch
from torch import Tensor

from ...runtime.channel.channel import silence_error
from ...runtime.channel.message import Message
from .world import World


@dataclass
class NetworkCard:
    """The card of one machine. bandwidth: bytes/s each way. out_free_s, in_free_s: when each way is idle again."""

    bandwidth: float = math.inf
    out_free_s: float = field(default=0.0, init=False)
    in_free_s: float = field(default=0.0, init=False)


class VirtualNetwork:
    """The network between roles, by name. latency_s: that a message travels. Messages of a pair arrive in order."""

    def __init__(self, world: World, latency_s: float = 0.0) -> None:
        self.world, self.latency_s = world, latency_s
        self.bytes_sent = 0
        self._cards: dict[str, NetworkCard] = {}
        self._inboxes: dict[str, Callable[[Message], None]] = {}
        self._begun: dict[tuple[str, str], float] = {}  # by pair, when the last message left
        self._arrived: dict[tuple[str, str], float] = {}  # by pair, when the last message is there

    def connect(self, name: str, bandwidth: float, take: Callable[[Message], None]) -> None:
        """Have a role with a card of its own. take: is called with each message that arrives."""
        self._cards[name], self._inboxes[name] = NetworkCard(bandwidth), take

    def disconnect(self, name: str) -> None:
        """Drop what arrives for a role from now on."""
        self._inboxes.pop(name, None)

    def send(self, source: str, target: str, message: Message) -> None:
        """Let a message travel."""
        pair, size, card, now = (source, target), message.bytes, self._cards[source], self.world.now
        self.bytes_sent += size
        begins_s = max(now, card.out_free_s if size else self._begun.get(pair, 0.0))
        takes_s = size / card.bandwidth
        if size:
            card.out_free_s = begins_s + takes_s
        self._begun[pair] = begins_s
        message = msgspec.structs.replace(message, sender=source)
        self.world.at(begins_s + self.latency_s - now, lambda: self._receive(pair, message, takes_s))

    def _receive(self, pair: tuple[str, str], message: Message, takes_s: float) -> None:
        """Receive a message whose first byte is there now; the sender's card gives it in `takes_s`."""
        card, now, size = self._cards[pair[1]], self.world.now, message.bytes
        if size:
            takes_s = max(takes_s, max(0.0, card.in_free_s - now) + size / card.bandwidth)
            card.in_free_s = now + takes_s
        arrives_s = max(now + takes_s, self._arrived.get(pair, 0.0))
        self._arrived[pair] = arrives_s
        self.world.at(arrives_s - now, lambda: self._deliver(pair[1], message))

    def _deliver(self, target: str, message: Message) -> None:
        take = self._inboxes.get(target)
        if take is not None:
            take(message)


class VirtualChannel:
    """A task's end of the virtual network; see `Channel`.

    copies: returns whether the borrowed tensors of a message must be copied, as the sender will write them again.
    """

    def __init__(
        self,
        name: str,
        network: VirtualNetwork,
        *,
        bandwidth: float = math.inf,
        copies: Callable[[Message], bool] = lambda message: True,
    ) -> None:
        self.name = name
        self._network, self._world, self._copies = network, network.world, copies
        self._inbox = deque[Message]()
        self._owner = network.world.present_task
        network.connect(name, bandwidth, self._take)

    def send(self, peer: str, message: Message) -> Message:
        """Send a message; see `Channel`."""
        owned = message.to_owned() if message.borrowed and self._copies(message) else message
        self._network.send(self.name, peer, owned)
        return owned

    def copy(self, tensor: Tensor) -> Tensor:
        """Copy a tensor; see `Channel`."""
        return tensor.clone()

    def empty(self, peer: str, size: int, dtype: torch.dtype) -> Tensor:
        """Return memory [size]; see `Channel`."""
        return torch.empty(size, dtype=dtype)

    def receive(self, timeout_s: float) -> Message:
        """Wait for a message; see `Channel`."""
        end = self._world.now + timeout_s
        while not self._inbox:
            if self._world.now >= end:
                raise silence_error(self.name, timeout_s)
            self._owner.block(end - self._world.now)
        return self._inbox.popleft()

    def poll(self) -> Message | None:
        """Return a message that has arrived; see `Channel`."""
        return self._inbox.popleft() if self._inbox else None

    def wait(self, timeout_s: float, *, files: Collection[int] = ()) -> None:
        """Wait until a message is there, or the time is over."""
        if not self._inbox:
            self._owner.block(timeout_s)

    def statistics(self) -> dict[str, dict[str, int]]:
        """Return nothing: the network counts."""
        return {}

    def close(self) -> None:
        """Take no more messages."""
        self._network.disconnect(self.name)

    def _take(self, message: Message) -> None:
        self._inbox.append(message)
        self._owner.wake()
