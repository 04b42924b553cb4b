"""`SliceSession`: the state of the exactly-once protocol between a client and the shard of one slice.

A client numbers the pushes of each slice 1, 2, 3, ... The shard applies them in that order and each number once. A push
stays in the replay buffer until the shard reports it durable, that is, written to its journal; so a shard that replaces
a lost one, and continues from that journal, can be sent everything that the journal lacks.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import torch
from torch import Tensor

from ...runtime.channel.mailbox import MessageKey
from ...runtime.channel.message import Message
from ...runtime.worker.flat_gradient import FlatGradient
from ..slices.push_payload import FACTORS, FETCH, GradientPacker, PushPayload
from ..slices.slicing import ParameterSlice
from ..slices.sparse_rows import SparseRows


class SliceSession:
    """Makes the messages about one slice and keeps track of what its shard has answered.

    piece: the slice. packer: compresses its pushes. replica: the client's replica number. initial: whether the client
    begins with the values that the shard begins with, so that the first fetch may ask for changes only.
    """

    def __init__(self, piece: ParameterSlice, packer: GradientPacker, replica: int, *, initial: bool = False) -> None:
        self.piece = piece
        self.packer = packer
        self.shard = f"shard-{piece.shard}"
        self.fetched_version: int | None = 0 if initial else None  # the version that the last fetch brought
        self.version = 0  # updates that the local values contain, the worker's own later pushes included
        self.sent = 0  # the number of the last push
        self.acknowledged = 0  # the number of the last push that the shard has acknowledged
        self.in_flight: deque[tuple[int, int]] = deque()  # number and bytes of each unacknowledged push
        self.attempt = 0  # how many times pushes were sent again
        self.replay_buffer: deque[tuple[int, Message]] = deque()  # number and message of each push not yet durable
        self.replay_bytes = 0
        self.put_bytes = 0  # bytes of the put values until the shard acknowledges them
        self.make_put: Callable[[], Message] | None = None  # makes the put message again, for a shard that lost it
        self.fetch_bytes = 0  # bytes that the current fetch is expected to bring
        self.expected_bytes = 0  # bytes that the last fetch brought, as an estimate of the next one
        self.fetch_request: Message | None = None  # the fetch whose values have not arrived
        self.is_leaving = False
        self.join_request: Message | None = None  # the request to take part, until it is answered
        self.join_step = 0  # the step that the answer assigned
        self.unfetched_pushes: deque[tuple[int, PushPayload | SparseRows]] = deque()  # since the fetch was requested
        self.bytes_in = 0
        self.bytes_out = 0
        self._replica = replica

    def key(self, kind: str, step: int = 0) -> MessageKey:
        """Return the mailbox key of a message of this kind from the shard about this slice."""
        return (self.shard, kind, step, 0, self.piece.number)

    @property
    def durable(self) -> int:
        """The number of the last push that need not be sent again, whatever happens to the shard."""
        return self.replay_buffer[0][0] - 1 if self.replay_buffer else self.sent

    @property
    def values_key(self) -> MessageKey:
        """The mailbox key of the values that the current fetch waits for."""
        assert self.fetch_request is not None
        return self.key("values", self.fetch_request.step)

    @property
    def is_unacknowledged(self) -> bool:
        """Whether the shard has yet to acknowledge something."""
        return self.put_bytes > 0 or self.sent > self.acknowledged or self.is_leaving or self.is_joining

    @property
    def is_unanswered(self) -> bool:
        """Whether the shard has yet to acknowledge something or to send values."""
        return self.is_unacknowledged or self.fetch_request is not None

    @property
    def is_joining(self) -> bool:
        """Whether the shard has yet to say with which step the replica takes part."""
        return self.join_request is not None

    @property
    def awaited_keys(self) -> list[MessageKey]:
        """The mailbox keys of the acknowledgements that are due, and of a request to send pushes again."""
        due = {
            "put_ack": self.put_bytes > 0,
            "push_ack": self.sent > self.acknowledged,
            "leave_ack": self.is_leaving,
            "join_ack": self.join_request is not None,
        }
        return [self.key(kind) for kind, is_due in due.items() if is_due] + [self.key("resend")]

    def pack(
        self,
        gradient: Tensor | FlatGradient,
        *,
        donate: bool = False,
        make: Callable[[str, int, torch.dtype], Tensor],
    ) -> PushPayload | SparseRows:
        """Return what a push of the machine's gradient [n] carries: of a sparse table only the touched rows.

        make: makes memory of so many elements that is to be sent to a shard, as `Channel.empty`; there is put together
        what lies apart. For `donate` see `GradientPacker.pack`.
        """
        if isinstance(gradient, Tensor):
            return self.packer.pack(self.slice_of(gradient), donate=donate)
        start, stop = self.piece.start, self.piece.stop
        if (rows := gradient.rows_between(start, stop)) is not None:
            return SparseRows(*rows)
        own = None if self.packer.compresses else gradient.gather(start, stop, partial(make, self.shard))
        if own is not None:
            return PushPayload((own,))
        return self.packer.pack(self.slice_of(gradient.flat), donate=donate)

    def slice_of(self, flat: Tensor) -> Tensor:
        """Return the elements of this slice in a flat buffer [n] of the machine, as a view."""
        return flat[self.piece.start : self.piece.stop]

    def make_push(
        self,
        payload: PushPayload | SparseRows,
        step: int,
        base: int,
        *,
        flush: int = 0,
        factors: Sequence[float] = (),
        fetch: Message | None = None,
    ) -> Message:
        """Make the next push message.

        base: the version that the gradient was computed on. flush: the number of the push that shall be durable soon, 0
        for none. factors: of the learning rate, for all groups of parameters or for each, where the worker says it.
        fetch: a fetch that travels with the push, so that it is answered with the values right after this push is
        applied.
        """
        self.sent += 1
        body = {"base": base, "number": self.sent, "replica": self._replica, "flush": flush, **payload.body_fields}
        if factors:
            body[FACTORS] = list(factors)
        if fetch is not None:
            body[FETCH] = {**fetch.body, "step": fetch.step}
        edge, borrowed = self.piece.number, payload.borrowed
        return Message("push", step=step, edge=edge, body=body, tensors=payload.tensors, borrowed=borrowed)

    def record_push(self, message: Message) -> None:
        """Keep the push that was just sent for a later replay, without a fetch that travelled with it."""
        if FETCH in message.body:
            alone = {name: value for name, value in message.body.items() if name != FETCH}
            message = msgspec.structs.replace(message, body=alone)
        self.replay_buffer.append((self.sent, message))
        self.replay_bytes += message.bytes
        self.in_flight.append((self.sent, message.bytes))

    def acknowledge(self, number: int) -> int:
        """Record that all pushes up to this number have arrived. Return how many bytes of them were in flight."""
        self.acknowledged, arrived = max(self.acknowledged, number), 0
        while self.in_flight and self.in_flight[0][0] <= number:
            arrived += self.in_flight.popleft()[1]
        return arrived

    def release_durable(self, number: int) -> int:
        """Drop the pushes up to this number from the replay buffer. Return how many bytes they had."""
        before = self.replay_bytes
        while self.replay_buffer and self.replay_buffer[0][0] <= number:
            self.replay_bytes -= self.replay_buffer.popleft()[1].bytes
        return before - self.replay_bytes

    def make_join(self, step: int) -> Message:
        """Ask for this step or a later one; the shard answers with the step that the replica may take."""
        body = {"replica": self._replica, "wants_step": True}
        self.join_request = Message("join", step, edge=self.piece.number, body=body)
        return self.join_request

    def make_leave(self) -> Message:
        """Announce that the replica takes no more steps; the shard answers once all pushes are durable."""
        self.is_leaving = True
        return Message("leave", edge=self.piece.number, body={"replica": self._replica, "number": self.sent})

    def resend_after(self, number: int) -> list[Message]:
        """Return the pushes after this number, marked with a new attempt so that answers to it can be told apart.

        The first says if there is a gap before it: pushes that were given up while their shard could not write them.
        """
        self.attempt += 1
        messages = [message for pushed, message in self.replay_buffer if pushed > number]
        for message in messages:
            message.body["attempt"] = self.attempt
        if messages and messages[0].body["number"] > number + 1:
            messages[0].body["gap"] = True
        return messages

    def on_shard_replaced(self, shard: str) -> list[Message]:
        """Return all messages for a shard that replaces the lost one, whose state is that of some earlier time."""
        self.shard = shard
        self.fetched_version = None  # the versions of the new shard count other updates
        if self.fetch_request is not None:
            self.fetch_request.body.pop("since", None)
        # What only the lost shard acknowledged may be lost with it; what is durable is not.
        self.acknowledged = self.durable
        first_step = self.replay_buffer[0][1].step if self.replay_buffer else None
        messages = [self.make_put()] if self.make_put is not None else []
        if first_step is not None:
            messages.append(Message("join", step=first_step, edge=self.piece.number, body={"replica": self._replica}))
        messages += self.resend_after(0)
        messages += [message for message in (self.join_request, self.fetch_request) if message is not None]
        return messages + ([self.make_leave()] if self.is_leaving else [])
