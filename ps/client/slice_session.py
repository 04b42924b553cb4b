"""`Line`: what one slice of a client's values and its shard are to each other."""

from collections import deque
from collections.abc import Callable

import msgspec
from torch import Tensor

from ...runtime.worker.flat_gradient import Gradient
from ...runtime.channel.mailbox import Key
from ...runtime.channel.message import Message
from ..slices.slicing import Slice
from ..slices.push_payload import Packed, Packer
from ..slices.sparse_rows import Rows

FETCH = "fetch"  # in the body of a push: that of a fetch, with its step


class Line:
    """Pushes are kept until the shard has them on its disk (`redo`), so that a shard that was lost gets them again.

    replica: the client's. initial: whether it begins with the values that the shard begins with.
    """

    def __init__(self, piece: Slice, packer: Packer, replica: int, *, initial: bool = False) -> None:
        self.piece = piece
        self.packer = packer
        self.shard = f"shard-{piece.shard}"
        self.held: int | None = 0 if initial else None  # the version that the last fetch brought
        self.version = 0  # of the shard's values that the local values contain, own later pushes counted in
        self.sent = 0  # number of the last push
        self.acknowledged = 0
        self.flying: deque[tuple[int, int]] = deque()  # numbers and bytes of pushes that are not acknowledged
        self.attempt = 0  # how often pushes were sent again
        self.redo: deque[tuple[int, Message]] = deque()
        self.redo_bytes = 0
        self.putting = 0  # bytes of the initial values, until they are acknowledged
        self.put: Callable[[], Message] | None = None  # makes what the shard may have to be given again
        self.coming = 0  # bytes that are counted on for a fetch
        self.expected = 0  # bytes of what changed, by the last fetch
        self.asked: Message | None = None  # the fetch whose values are to come
        self.leaving = False
        self.joining: Message | None = None  # the wish to take part, until it is answered
        self.joined = 0  # the step that the answer allows
        self.later: deque[tuple[int, Packed | Rows]] = deque()  # pushes since the fetch was asked for
        self.bytes_in = 0
        self.bytes_out = 0
        self._replica = replica

    def key(self, kind: str, step: int = 0) -> Key:
        """What a message of the shard about this slice is waited for by."""
        return (self.shard, kind, step, 0, self.piece.number)

    @property
    def values_key(self) -> Key:
        """Of the values that are to come."""
        assert self.asked is not None
        return self.key("values", self.asked.step)

    @property
    def fetching(self) -> bool:
        """Whether values are to come."""
        return self.asked is not None

    @property
    def unanswered(self) -> bool:
        """Whether an acknowledgement is to come."""
        return self.putting > 0 or self.sent > self.acknowledged or self.leaving or self.joining is not None

    @property
    def awaited(self) -> list[Key]:
        """The acknowledgements that are to come."""
        kinds = {"held": self.putting > 0, "pushed": self.sent > self.acknowledged, "left": self.leaving}
        kinds["joined"] = self.joining is not None
        return [self.key(kind) for kind, wanted in kinds.items() if wanted] + [self.key("again")]

    def pack(self, gradient: Tensor | Gradient, *, given: bool = False) -> Packed | Rows:
        """What is pushed of a machine's gradient: of a table the rows that were touched. given: see `Packer.pack`."""
        part = gradient.part(self.piece.start, self.piece.stop) if isinstance(gradient, Gradient) else None
        if part is not None:
            return Rows(*part)
        return self.packer.pack(self.of(gradient.flat if isinstance(gradient, Gradient) else gradient), given=given)

    def of(self, flat: Tensor) -> Tensor:
        """The elements of this slice in a buffer of the machine."""
        return flat[self.piece.start : self.piece.stop]

    def push(
        self, packed: Packed | Rows, step: int, base: int, *, hurry: bool, fetch: Message | None = None
    ) -> Message:
        """The next push. hurry: whether the shard should bring to its disk soon what it has. fetch: what the push is to
        make of the values is asked for along with it.
        """
        self.sent += 1
        body = {"base": base, "number": self.sent, "replica": self._replica, "hurry": hurry, **packed.fields}
        if fetch is not None:
            body[FETCH] = {**fetch.body, "step": fetch.step}
        edge, borrowed = self.piece.number, packed.borrowed
        return Message("push", step=step, edge=edge, body=body, tensors=packed.tensors, borrowed=borrowed)

    def keep(self, message: Message) -> None:
        """The last push was sent, and is this one, as it may have to be sent again: alone."""
        if FETCH in message.body:
            alone = {name: value for name, value in message.body.items() if name != FETCH}
            message = msgspec.structs.replace(message, body=alone)
        self.redo.append((self.sent, message))
        self.redo_bytes += message.bytes
        self.flying.append((self.sent, message.bytes))

    def acknowledge(self, number: int) -> int:
        """All pushes up to this number have arrived; the bytes of those that were on their way."""
        self.acknowledged, arrived = max(self.acknowledged, number), 0
        while self.flying and self.flying[0][0] <= number:
            arrived += self.flying.popleft()[1]
        return arrived

    def durable(self, number: int) -> int:
        """Pushes up to this number need not be kept; the bytes that they had."""
        before = self.redo_bytes
        while self.redo and self.redo[0][0] <= number:
            self.redo_bytes -= self.redo.popleft()[1].bytes
        return before - self.redo_bytes

    def join(self, step: int) -> Message:
        """The replica wants to take a step, or one after it; to be answered with the step that it may take."""
        self.joining = Message("join", step, edge=self.piece.number, body={"replica": self._replica, "asks": True})
        return self.joining

    def leave(self) -> Message:
        """The replica takes no more steps; to be answered once the shard has all pushes on its disk."""
        self.leaving = True
        return Message("leave", edge=self.piece.number, body={"replica": self._replica, "number": self.sent})

    def again(self, after: int) -> list[Message]:
        """The pushes after a number, to be sent again, with a mark by which an answer to this attempt is known."""
        self.attempt += 1
        found = [message for number, message in self.redo if number > after]
        for message in found:
            message.body["attempt"] = self.attempt
        return found

    def anew(self, shard: str) -> list[Message]:
        """All that a shard must be told that took the place of a lost one: it is as some earlier time has left it."""
        self.shard = shard
        self.held = None  # its versions are others
        if self.asked is not None:
            self.asked.body.pop("since", None)
        self.acknowledged = self.redo[0][0] - 1 if self.redo else self.sent  # by the lost one: may be lost with it
        first = self.redo[0][1].step if self.redo else None
        messages = [self.put()] if self.put is not None else []
        if first is not None:
            messages.append(Message("join", step=first, edge=self.piece.number, body={"replica": self._replica}))
        messages += self.again(0)
        messages += [message for message in (self.joining, self.asked) if message is not None]
        return messages + ([self.leave()] if self.leaving else [])
