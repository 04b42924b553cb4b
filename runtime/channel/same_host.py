"""`SameHostPeers`: the memory and the sockets that one channel has with those of its peers that run on the same host.

Before the first large tensor for such a peer goes a message of its own: where our arena for it is, and our pool. Until
the peer answers that it has mapped them, and for ever where it could not, tensors travel as to any other host. So does
every message until the peer has answered where it listens for small ones (runtime/local_sockets.py).
"""

from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import msgspec
import torch
from torch import Tensor

from ..local_sockets import Address, LocalSockets
from .message import Message, SharedSlot, SharedTensorReader
from .shared_memory import ARENA_BYTES, MIN_SHARED_BYTES, MIN_SLOT_BYTES, Arena, MappedArena, Offer
from .tensor_pool import TensorPool

SHARED_MEMORY = "@shared_memory"  # kind of the messages in which two channels agree on it; no role sees them


class SameHostPeers:
    """One channel's arenas, one for each peer on its host, its pool, which all of them read, and its sockets.

    host: the address that this channel listens on. size: bytes of each arena; 0 shares nothing, and makes no sockets.
    readers: by peer, what finds the tensors that the peer has put into memory of its own.
    """

    def __init__(self, host: str, *, size: int = ARENA_BYTES) -> None:
        self._host, self._size = host, size
        self._arenas: dict[str, Arena | None] = {}  # those offered, by peer; None where the peer could not map it
        self._answered: set[str] = set()  # peers that have answered our offer
        self._offering: set[str] = set()  # peers that have offered theirs
        self._pool: TensorPool | None = None  # made for the first tensor
        self._can_pool = size > 0
        self._pool_readers: set[str] = set()  # peers that have mapped the pool
        self.readers: dict[str, SharedTensorReader] = {}
        self.sockets = LocalSockets()
        self._asked: set[str] = set()  # peers that were asked for a socket
        self._unanswered: set[str] = set()  # of these, which have not answered
        self._askers: set[str] = set()  # peers that have asked

    def arena(self, peer: str) -> Arena | None:
        """The arena for a peer, once the peer has mapped it."""
        return self._arenas.get(peer) if peer in self._answered else None

    def copy(self, tensor: Tensor) -> Tensor:
        """Copy a tensor that will be sent often, into the pool if possible, where peers read it in place."""
        if self._pool is None and self._can_pool and tensor.nbytes >= MIN_SHARED_BYTES:
            try:
                self._pool = TensorPool()
            except (OSError, AttributeError):  # as in `offer_memory`
                self._can_pool = False
        return tensor.clone() if self._pool is None else self._pool.copy(tensor)

    def empty(self, peer: str, size: int, dtype: torch.dtype) -> Tensor:
        """Return memory [size] for a tensor that is to be sent to a peer once, where that reads it if possible."""
        arena = self.arena(peer)
        reserved = None if arena is None else arena.reserve(size, dtype)
        return torch.empty(size, dtype=dtype) if reserved is None else reserved

    def place_tensors(self, peer: str, message: Message) -> tuple[Message, list[SharedSlot | None]]:
        """Put the tensors of a message where a peer can read them.

        Returns the message, with copies of its own in place of borrowed tensors, and for each tensor its slot, or None
        for one that must travel.
        """
        arena = self.arena(peer)
        if arena is None:
            return message.to_owned(), [None] * len(message.tensors)
        if not message.borrowed:
            return message, [
                self._lend(peer, arena, tensor) or arena.send_reserved(tensor) or arena.put(tensor)
                for tensor in message.tensors
            ]
        slots = [arena.put(tensor) for tensor in message.tensors]
        own = tuple(
            tensor.clone() if slot is None else arena.view_slot(slot, tensor)
            for tensor, slot in zip(message.tensors, slots, strict=True)
        )
        return msgspec.structs.replace(message, tensors=own, borrowed=False), slots

    def is_elsewhere(self, peer: str, endpoint: str) -> bool:
        """Whether all tensors for a peer will travel: it is on another host, or could not map what it was offered."""
        return not self._size or not self._is_here(endpoint) or (peer in self._arenas and self._arenas[peer] is None)

    def offer_memory(self, peer: str, endpoint: str, message: Message) -> Message | None:
        """The offer of shared memory to send before `message`, if it is time for one."""
        if not self._size or peer in self._arenas or not self._is_here(endpoint):
            return None
        if all(t.nbytes < MIN_SLOT_BYTES for t in message.tensors):
            return None
        try:
            arena = self._arenas[peer] = Arena(self._size)
        except (OSError, AttributeError):  # no address space left; not Linux
            self._arenas[peer] = None
            return None
        body = {"offer": _to_dict(arena.offer)}
        if self._pool is not None:
            body["pool"] = _to_dict(self._pool.offer)
        return Message(SHARED_MEMORY, body=body)

    def is_settled(self, peer: str) -> bool:
        """Whether a peer has been offered all that there is to share."""
        return self._arenas.get(peer) is not None and peer in self._asked

    def ask_for_socket(self, peer: str, endpoint: str) -> Message | None:
        """The question where a peer listens for small messages, if it is time for it."""
        if peer in self._asked or not self._size or not self._is_here(endpoint):
            return None
        self._asked.add(peer)
        self._unanswered.add(peer)
        return Message(SHARED_MEMORY, body={"socket": {}})

    def handle(self, message: Message) -> Message | None:
        """Take in a peer's offer of shared memory, its question for a socket, or its answer to one of ours.

        Returns our answer to an offer or a question.
        """
        peer = message.sender
        if "socket" in message.body:
            return self._handle_socket(peer, message.body["socket"])
        if "offer" in message.body:
            if peer in self._offering:  # a peer offers once; answers that it does not read would pile up
                return None
            self._offering.add(peer)
            mapping = self._map_arena(peer, message.body)
            return Message(
                SHARED_MEMORY, body={"mapped": mapping is not None, "pooled": mapping is not None and mapping.pooled}
            )
        self._answered.add(peer)
        arena = self._arenas.get(peer)
        if arena is not None and not message.body.get("mapped"):
            arena.close()
            self._arenas[peer] = None
        elif arena is not None and message.body.get("pooled"):
            self._pool_readers.add(peer)
        return None

    def _handle_socket(self, peer: str, body: Any) -> Message | None:
        """Answer a peer's question for a socket with an address, or connect to that in its answer to ours."""
        if body != {}:
            if peer in self._unanswered:
                self._unanswered.discard(peer)
                with suppress(msgspec.ValidationError):  # nonsense: messages go by the network
                    self.sockets.connect(peer, msgspec.convert(body, Address))
            return None
        if peer in self._askers or not self._size:  # a peer asks once, as it offers once
            return None
        self._askers.add(peer)
        address = self.sockets.admit(peer)
        if address is None:
            return None
        return Message(SHARED_MEMORY, body={"socket": list(address)})

    def reclaim(self) -> None:
        """Let go of what peers have finished reading in the pool, so that it may be written again."""
        for peer in self._pool_readers:
            arena = self._arenas[peer]
            if arena is not None:
                arena.reclaim()

    def forget(self, peer: str) -> None:
        """Let go of what was shared with a peer that has ended."""
        self._pool_readers.discard(peer)
        arena = self._arenas.pop(peer, None)
        if arena is not None:
            arena.close()
        self.readers.pop(peer, None)
        self.sockets.forget(peer)

    def close(self) -> None:
        """Let go of all memory; tensors over that of peers stay as they are."""
        for arena in self._arenas.values():
            if arena is not None:
                arena.close()
        if self._pool is not None:
            self._pool.close()
        self.sockets.close()
        self._arenas.clear()
        self._pool_readers.clear()
        self.readers.clear()

    def _lend(self, peer: str, arena: Arena, tensor: Tensor) -> SharedSlot | None:
        """Lend a tensor that lies in the pool to a peer that has mapped it."""
        if self._pool is None or peer not in self._pool_readers:
            return None
        offset = self._pool.offset(tensor)
        return None if offset is None else arena.lend(tensor, offset)

    def _map_arena(self, peer: str, body: dict[str, Any]) -> MappedArena | None:
        try:
            pool = msgspec.convert(body.get("pool"), Offer | None)
            mapping = self.readers[peer] = MappedArena(msgspec.convert(body["offer"], Offer), pool)
        except (OSError, ValueError, msgspec.ValidationError):  # another host or name space, or nonsense: it travels
            return None
        return mapping

    def _is_here(self, endpoint: str) -> bool:
        host = urlsplit(endpoint).hostname or ""
        return host == self._host or (host.startswith("127.") and self._host.startswith("127."))


def _to_dict(offer: Offer) -> Any:
    return msgspec.to_builtins(offer, builtin_types=(bytes,))
