"""`Neighbours`: the shared memory of one channel with those of its peers that run on the same host.

To the first large tensor for such a peer a message of its own is put in front: where our arena is. Until the peer has
answered that it found it, and for ever where it did not, tensors travel as they would to any other host.
"""

from typing import Any
from urllib.parse import urlsplit

import msgspec

from .message import Message, Place, Reader
from .shared_memory import ARENA_BYTES, LEAST_BYTES, Arena, Mapping, Offer

MEMORY = "@memory"  # the kind of messages between two channels, which no role sees


class Neighbours:
    """host: this channel listens on; size: of an arena in bytes, 0 shares nothing."""

    def __init__(self, host: str, *, size: int = ARENA_BYTES) -> None:
        self._host, self._size = host, size
        self._offered: dict[str, Arena | None] = {}  # None where the peer did not find it
        self._answered: set[str] = set()
        self._asked: set[str] = set()  # peers that have offered theirs
        self.readers: dict[str, Reader] = {}

    def arena(self, peer: str) -> Arena | None:
        """What to put tensors for a peer in."""
        return self._offered.get(peer) if peer in self._answered else None

    def placed(self, peer: str, message: Message) -> tuple[Message, list[Place | None]]:
        """Where the tensors lie for a peer, None for those that must travel; and the message, with those as its own
        that were borrowed.
        """
        arena = self.arena(peer)
        if arena is None:
            return message.owned(), [None] * len(message.tensors)
        places = [arena.put(tensor) for tensor in message.tensors]
        if not message.borrowed:
            return message, places
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
        return Message(MEMORY, body={"offer": msgspec.to_builtins(arena.offer, builtin_types=(bytes,))})

    def heard(self, message: Message) -> Message | None:
        """Take in what a peer says of shared memory; the answer, if it wants one."""
        if "offer" in message.body:
            if message.sender in self._asked:  # a peer offers once; answers that it does not read would pile up
                return None
            self._asked.add(message.sender)
            return Message(MEMORY, body={"found": self._find(message.sender, message.body["offer"])})
        self._answered.add(message.sender)
        arena = self._offered.get(message.sender)
        if arena is not None and not message.body.get("found"):
            arena.close()
            self._offered[message.sender] = None
        return None

    def forget(self, peer: str) -> None:
        """The peer has ended: let go of what was shared with it."""
        arena = self._offered.pop(peer, None)
        if arena is not None:
            arena.close()
        self.readers.pop(peer, None)

    def close(self) -> None:
        """Let go of all memory; tensors over that of peers stay as they are."""
        for arena in self._offered.values():
            if arena is not None:
                arena.close()
        self._offered.clear()
        self.readers.clear()

    def _find(self, sender: str, offer: Any) -> bool:
        try:
            self.readers[sender] = Mapping(msgspec.convert(offer, Offer))
        except (OSError, ValueError, msgspec.ValidationError):  # another host or name space, or nonsense: it travels
            return False
        return True

    def _is_here(self, endpoint: str) -> bool:
        host = urlsplit(endpoint).hostname or ""
        return host == self._host or (host.startswith("127.") and self._host.startswith("127."))
