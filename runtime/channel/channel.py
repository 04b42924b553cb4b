"""`Channel`: the one small interface to a network. `ZmqChannel` and `MemoryChannel` implement it."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from ...errors import NetworkError
from .message import Message

DIRECTORY = "@directory"  # from the launcher to the channel of a role; see `make_directory`
MAX_LINKS = 16  # that are told one by one
CONNECTION_LOST = "@connection_lost"  # to the launcher: {"peer", "code", "facts", "fix"} of one that lost messages
KEYS_KNOWN = "@keys_known"  # to the launcher: {"owners": [owner]} of the keys that were in one
NOTHING: Mapping[str, str] = MappingProxyType({})


def make_directory(
    *,
    joined: Mapping[str, str] = NOTHING,
    key_owners: Mapping[str, str] = NOTHING,
    gone: Iterable[str] = (),
    keys: Mapping[str, str] = NOTHING,
) -> Message:
    """Return the launcher's news for the channel of a role.

    joined: where roles listen. key_owners: whose key each role holds. gone: roles that have ended. keys: the public key
    of each host that has joined, which the channel confirms.
    """
    body = {"joined": dict(joined), "key_owners": dict(key_owners), "gone": list(gone), "keys": dict(keys)}
    return Message(DIRECTORY, body=body)


class Channel(Protocol):
    """One named end point that sends messages to named peers and receives them in one inbox.

    Messages of one sender arrive in order, each once; a gap raises NetworkError. A channel belongs to one thread.
    """

    name: str

    def send(self, peer: str, message: Message) -> Message:
        """Queue `message` for `peer` and return at once. Its tensors must not be written afterwards, unless borrowed.

        Returns the message in a form that can be kept, for a retransmission say: with tensors that nobody writes. They
        are those of the message, or the one copy that the channel has made of borrowed ones.
        """
        ...

    def copy(self, tensor: Tensor) -> Tensor:
        """Copy a tensor that will be sent often, if possible to where peers on this host read it in place."""
        ...

    def empty(self, peer: str, size: int, dtype: torch.dtype) -> Tensor:
        """Return memory [size] for a tensor that is to be sent to a peer once, if possible where that reads it."""
        ...

    def receive(self, timeout_s: float) -> Message:
        """Wait for the next message of any peer; SilenceError after `timeout_s` seconds without one."""
        ...

    def poll(self) -> Message | None:
        """Return the next message if one is there, without waiting."""
        ...

    def statistics(self) -> dict[str, dict[str, int]]:
        """Count messages and tensor bytes so far by peer.

        {peer: {"messages_out", "bytes_out", "messages_in", "bytes_in", "repeated", "malformed", "undelivered"}}; the
        last three count messages that were dropped; "undelivered" are those to a peer that has ended.
        """
        ...

    def close(self) -> None:
        """Release the end point. Queued messages are still sent, for at most a second."""
        ...


def count_link_bytes(channel: Channel) -> dict[str, int]:
    """Return the bytes of tensors sent so far, by peer; of more than MAX_LINKS the least ones as "others".

    What has come the peers count, as sent.
    """
    sent = {peer: count["bytes_out"] for peer, count in channel.statistics().items() if count["bytes_out"]}
    kept = sorted(sent, key=lambda peer: -sent[peer])[:MAX_LINKS]
    rest = sum(sent.values()) - sum(sent[peer] for peer in kept)
    return {peer: sent[peer] for peer in kept} | ({"others": rest} if rest else {})


class SilenceError(NetworkError):
    """Raised when nothing arrived before the deadline. state: what the channel knew of its connections, as text."""

    state = ""


def silence_error(name: str, timeout_s: float, *, missing: str = "message", state: str = "") -> SilenceError:
    """The error of a role that waited in vain. missing: for what. state: what its channel knows of its connections."""
    error = SilenceError(
        "E501",
        f"{name} waited {timeout_s:g} s and no {missing} came{state}",
        fix="see in the log of each role whether it still runs; raise the timeout where a step takes longer than this",
    )
    error.state = state
    return error


def unknown_peer_error(name: str, peer: str, known: list[str]) -> NetworkError:
    """The error of a role that sends to a name that no peer has."""
    return NetworkError(
        "E507",
        f"{name} has no peer {peer!r}; it knows {', '.join(sorted(known)) or 'none yet'}",
        fix="check the role's name",
    )
