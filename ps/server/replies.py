"""What a shard returns for a message: replies with their receivers, or an error if the message breaks the protocol."""

from ...errors import NetworkError
from ...runtime.channel.message import Message
from ..slices.slicing import ParameterSlice

Replies = list[tuple[str, Message]]


def protocol_error(shard: int, piece: ParameterSlice | None, message: Message, facts: str) -> NetworkError:
    """Return error E550 about a message to a shard. piece: the slice that the message names, None if there is none."""
    there = "" if piece is None else f" of machine {piece.machine}"
    return NetworkError(
        "E550",
        f"shard-{shard}: message {message.kind!r} of {message.sender} for slice {message.edge}{there} "
        f"(step {message.step}) {facts}",
        fix="check that all roles belong to this run and are of one version of cutset; then start the run again",
    )
