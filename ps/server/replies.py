"""What a shard answers: messages and whom they are for, or that one was sent to it which breaks the protocol."""

from ...errors import NetworkError
from ...runtime.channel.message import Message
from ..slices.slicing import Slice

Replies = list[tuple[str, Message]]


def broken(shard: int, piece: Slice | None, message: Message, facts: str) -> NetworkError:
    """The error of a message to a shard about one of its slices, None where it has no such slice."""
    there = "" if piece is None else f" of machine {piece.machine}"
    return NetworkError(
        "E550",
        f"shard-{shard}: message {message.kind!r} of {message.sender} for slice {message.edge}{there} "
        f"(step {message.step}) {facts}",
        fix="check that all roles belong to this run and are of one version of cutset; then start the run again",
    )
