"""`Neighbours`: the shared memory of one channel with those of its peers that run on the same host.

To the first large tensor for such a peer a message of its own is put in front: where our arena is, and our pool. Until
the peer has answered that it found them, and for ever where it did not, tensors travel as they would to any other host.
"""

from typing import Any
from urllib.parse import urlsplit

import msgspec
from torch import Tensor

from .message import Message, Place, Reader
from .pool import Pool
from .shared_memory import ARENA_BYTES, LEAST_BYTES, Arena, Mapping, Offer

MEMORY = "@memory"  # the kind of messages between two channels, which no role sees


class Neighbours:
    """host: this channel listens on; size: of an arena in bytes, 0 shares nothing."""

    def __init__(self, host: str, *, size: int = ARENA_BYTES) -> None:
        self._host, self._size = host, size
        self._offered: dict[str, Arena | None] = {}  # None where the peer did not find it
        self._answered: set[str] = set()
        self._asked: set[str] = set()  # peers that have offered theirs
        self._pool: Pool | None = None  # made for the first tensor
        self._pools = size > 0  # whether it can be
        self._pooled: set[str] = set()  # peers that have found it
        self.readers: dict[str, Reader] = {}

    def arena(self, peer: str) -> Arena | None:
        """What to put tensors for a peer in."""
        return self._offered.get(peer) if peer in self._answered else None

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor that will be sent often: for peers to read in place, where that is possible."""
        if self._pool is None and self._pools and tensor.nbytes >= LEAST_BYTES:
            try:
                self._pool = Pool()
            except (OSError, AttributeError):  # as in `offer`
                self._pools = False
        return tensor.clone() if self._pool is None else self._pool.copy(tensor)

    def placed(self, peer: str, message: Message) -> tuple[Message, list[Place | None]]:
        """Where the tensors lie for a peer, None for those that must travel; and the message, with those as its own
        that were borrowed.
        """
        arena = self.arena(peer)
        if arena is None:
            return message.owned(), [None] * len(message.tensors)
        if not message.borrowed:
            return message, [self._lent(peer, arena, tensor) or arena.put(tensor) for tensor in message.tensors]
        places = [arena.put(tensor) for tensor in message.tensors]
        own = tuple(
            tensor.clone() if place is None else arena.kept(place, tensor)
            for tensor, place in zip(message.tensors, places, strict=True)
        )
        return msgspec.structs.replace(message, tensors=own, borrowed=False), places

    def offer(self, peer: str, endpoint: str, message: Message) -> Message | None:
        """The message to send before this one, if it is time to offer the peer shared memory."""
        if not self._size or peer in self._offered or not self._is_here(endpoint):
            return None
        if all(t.nbytes < LEAST_BYTES for t in message.tensors):
            return None
        try:
            arena = self._offered[peer] = Arena(self._size)
        except (OSError, AttributeError):  # no address space left; not Linux
            self._offered[peer] = None
            return None
        body = {"offer": _plain(arena.offer)}
        if self._pool is not None:
            body["pool"] = _plain(self._pool.offer)
        return Message(MEMORY, body=body)

    def heard(self, message: Message) -> Message | None:
        """Take in what a peer says of shared memory; the answer, if it wants one."""
        if "offer" in message.body:
            if message.sender in self._asked:  # a peer offers once; answers that it does not read would pile up
                return None
            self._asked.add(message.sender)
            found = self._find(message.sender, message.body)
            return Message(MEMORY, body={"found": found is not None, "pooled": found is not None and found.pooled})
        self._answered.add(message.sender)
        arena = self._offered.get(message.sender)
        if arena is not None and not message.body.get("found"):
            arena.close()
            self._offered[message.sender] = None
        elif arena is not None and message.body.get("pooled"):
            self._pooled.add(message.sender)
        return None

    def take_back(self) -> None:
        """Let go of what peers have read in the pool: it may be written again."""
        for peer in self._pooled:
            arena = self._offered[peer]
            if arena is not None:
                arena.take_back()

    def forget(self, peer: str) -> None:
        """The peer has ended: let go of what was shared with it."""
        self._pooled.discard(peer)
        arena = self._offered.pop(peer, None)
        if arena is not None:
            arena.close()
        self.readers.pop(peer, None)

    def close(self) -> None:
        """Let go of all memory; tensors over that of peers stay as they are."""
        for arena in self._offered.values():
            if arena is not None:
                arena.close()
        if self._pool is not None:
            self._pool.close()
        self._offered.clear()
        self._pooled.clear()
        self.readers.clear()

    def _lent(self, peer: str, arena: Arena, tensor: Tensor) -> Place | None:
        """Where a peer finds a tensor that lies in the pool."""
        if self._pool is None or peer not in self._pooled:
            return None
        offset = self._pool.offset(tensor)
        return None if offset is None else arena.lend(tensor, offset)

    def _find(self, sender: str, told: dict[str, Any]) -> Mapping | None:
        try:
            pool = msgspec.convert(told.get("pool"), Offer | None)
            found = self.readers[sender] = Mapping(msgspec.convert(told["offer"], Offer), pool)
        except (OSError, ValueError, msgspec.ValidationError):  # another host or name space, or nonsense: it travels
            return None
        return found

    def _is_here(self, endpoint: str) -> bool:
        host = urlsplit(endpoint).hostname or ""
        return host == self._host or (host.startswith("127.") and self._host.startswith("127."))


def _plain(offer: Offer) -> Any:
    return msgspec.to_builtins(offer, builtin_types=(bytes,))
