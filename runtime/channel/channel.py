"""`Channel`: the one small interface to a network; the ZeroMQ and the in-memory channel both fill it."""

from typing import Protocol

from torch import Tensor

from ...errors import NetworkError
from .message import Message


class Channel(Protocol):
    """One named end point that sends messages to named peers and receives them in one inbox.

    Messages of one sender arrive in order, each once; a gap raises NetworkError. A channel belongs to one thread.
    """

    name: str

    def send(self, peer: str, message: Message) -> Message:
        """Queue `message` for `peer`; returns at once. Its tensors must not be written afterwards, unless borrowed.

        The message as it can be kept, to be sent again say: with tensors that nobody writes. They are those of the
        message, or the one copy that the channel has made of borrowed ones.
        """
        ...

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor that will be sent often: where peers on this host can read it in place, if they can."""
        ...

    def receive(self, timeout_s: float) -> Message:
        """The next message of any peer; SilenceError after `timeout_s` seconds without one."""
        ...

    def poll(self) -> Message | None:
        """The next message if one is there."""
        ...

    def statistics(self) -> dict[str, dict[str, int]]:
        """Messages and tensor bytes so far by peer.

        {peer: {"messages_out", "bytes_out", "messages_in", "bytes_in", "repeated", "malformed", "undelivered"}}; the
        last three count messages that were dropped, the last of them those to a peer that is gone.
        """
        ...

    def close(self) -> None:
        """Release the end point; queued messages are flushed for at most a second."""
        ...


class SilenceError(NetworkError):
    """Nothing arrived before the deadline."""


def silence(name: str, timeout_s: float, *, state: str = "") -> SilenceError:
    """The error of a role that waited in vain. state: what its channel knows about the links, in words."""
    return SilenceError(
        "E501",
        f"{name} waited {timeout_s:g} s and no message came{state}",
        fix="see in the log of each role whether it still runs; raise the timeout where a step takes longer than this",
    )


def unknown_peer(name: str, peer: str, known: list[str]) -> NetworkError:
    """The error of a role that sends to a name that nobody has."""
    return NetworkError(
        "E507",
        f"{name} has no peer {peer!r}; it knows {', '.join(sorted(known)) or 'none yet'}",
        fix="check the role's name",
    )
