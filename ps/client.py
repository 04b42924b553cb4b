"""`Client`: a worker's view of the shards - put, fetch, push, wait. Fetches and pushes run while the worker computes.

The worker sees its own pushes (read your writes): with a local rate, the values that a fetch brings are those of the
shard plus the local steps of every gradient that they do not contain yet. So a lone replica is never behind itself.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor

from ..partition.errors import NetworkError
from ..runtime.channel import SilenceError, silence
from ..runtime.mailbox import Key, Mailbox
from ..runtime.message import Message
from .layout import Slice

WINDOW_BYTES = 32 << 20


class _Line:
    """What one slice of the values and its shard are to each other."""

    def __init__(self, piece: Slice) -> None:
        self.piece = piece
        self.shard = f"shard-{piece.shard}"
        self.version = 0  # of the shard's values that the local values contain, own later pushes counted in
        self.sent = 0  # number of the last push
        self.acknowledged = 0
        self.putting = 0  # bytes of the initial values, until they are acknowledged
        self.fetching = False
        self.later: deque[tuple[int, Tensor]] = deque()  # pushes since the fetch was asked for
        self.bytes_in = 0
        self.bytes_out = 0

    def key(self, kind: str) -> Key:
        return (self.shard, kind, 0, 0, self.piece.number)

    @property
    def unanswered(self) -> bool:
        """Whether an acknowledgement is to come."""
        return self.putting > 0 or self.sent > self.acknowledged

    @property
    def awaited(self) -> list[Key]:
        """The acknowledgements that are to come."""
        return [self.key("held")] * (self.putting > 0) + [self.key("pushed")] * (self.sent > self.acknowledged)

    def of(self, flat: Tensor) -> Tensor:
        """The elements of this slice in a buffer of the machine."""
        return flat[self.piece.start : self.piece.stop]


class Client:
    """Moves the values of one machine's parameters to and from their shards."""

    def __init__(
        self,
        mailbox: Mailbox,
        slices: Sequence[Slice],
        values: Tensor,
        *,
        local_rate: float = 0.0,
        replica: int = 0,
        unacknowledged: int = 8,
        window_bytes: int = WINDOW_BYTES,
        patience_s: float = 24 * 3600.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Of the machine whose flat buffer is `values` [n], which fetches change in place and which needs no gradient.

        slices: those of this machine; they cover [0, n).
        local_rate: of the step that the worker takes itself with every gradient; 0 where it takes none.
        replica: the number of the worker's replica.
        unacknowledged: pushes of a slice in flight; with more, `push` waits.
        window_bytes: in flight at most each way, so that neither end ever holds a second copy of everything.
        patience_s: how long a fetch may wait for pushes of others (warm start); other waits end at the mailbox's.
        """
        self.values = values
        self.local_rate = local_rate
        self.replica = replica
        self._mailbox = mailbox
        self._lines = [_Line(piece) for piece in slices]
        self._unacknowledged = unacknowledged
        self._patience_s = patience_s
        self._clock = clock
        self._window_bytes = window_bytes
        self._at_least = 0  # the version that a fetch waits for
        self._slowest = 0  # steps of every replica that it waits for
        self._unasked = deque[_Line]()  # of the fetch under way
        self._asked: dict[int, _Line] = {}  # by number of the slice
        self._coming = 0  # bytes that were asked for
        self._away = 0  # bytes that were put or pushed and are not acknowledged
        self._fetches = 0
        self._pushes = 0
        self._blocked_s = {"fetch": 0.0, "push": 0.0}
        held = sum(piece.size for piece in slices)
        if held != values.numel():
            raise ValueError(f"slices of {held} elements for {values.numel()} values: {list(slices)}")

    @property
    def name(self) -> str:
        """The worker's."""
        return self._mailbox.channel.name

    @property
    def fetching(self) -> bool:
        """Whether a fetch was asked for and is not installed yet."""
        return bool(self._asked or self._unasked)

    @property
    def version(self) -> int:
        """Of the values as the last fetch brought them: the least of all slices."""
        return min((line.version for line in self._lines), default=0)

    @property
    def in_flight(self) -> int:
        """Pushes that are not acknowledged yet, of the slice that has most of them."""
        return max((line.sent - line.acknowledged for line in self._lines), default=0)

    def put(self) -> None:
        """Give the shards the initial values; one replica does, once."""
        for line in self._lines:
            self._await_room(line)
            line.putting = line.piece.size * self.values.element_size()
            self._away += line.putting
            self._send(line, Message("put", edge=line.piece.number, tensors=(line.of(self.values).clone(),)))

    def fetch(self, at_least: int = 0, slowest: int = 0) -> None:
        """Ask all shards for the values; returns at once.

        Each shard answers once its slice has version `at_least` and every replica has pushed `slowest` steps. As many
        slices are asked for as the window has room for, the others as those arrive.
        """
        if self.fetching:
            raise RuntimeError(f"{self.name} fetches while a fetch is under way; wait for it first")
        self._fetches += 1
        self._at_least, self._slowest = at_least, slowest
        self._unasked.extend(self._lines)
        self._ask()

    def arrived(self, unpushed: Tensor | None = None) -> bool:
        """Install the slices that have come; whether the fetch is complete. For `unpushed` see `wait`."""
        while found := [pair for pair in map(self._taken, list(self._asked.values())) if pair is not None]:
            for line, message in found:
                self._install(line, message, unpushed)
            self._ask()
        return not self.fetching

    def wait(self, unpushed: Tensor | None = None) -> None:
        """Install every slice of the fetch; returns at once where none is under way.

        unpushed: gradients [n] that were computed and not pushed yet; with a local rate their step is taken again.
        """
        start = self._clock()
        while self._asked:
            message = self._next([line.key("values") for line in self._asked.values()], since=start)
            self._install(self._asked[message.edge], message, unpushed)
            self._ask()
        self._blocked_s["fetch"] += self._clock() - start

    def push(self, gradients: Tensor, step: int, *, base: int | None = None) -> None:
        """Send a copy of `gradients` [n] to the shards. With a local rate, the caller has taken their step.

        base: the version that they were computed on, where that is not the one fetched.
        """
        self._collect()
        self._pushes += 1
        for line in self._lines:
            self._await_room(line)
            self._push(line, line.of(gradients).clone(), step, base)

    def join(self, step: int) -> None:
        """Tell the shards that the replica took all steps before this one, so that nobody waits for those."""
        for line in self._lines:
            self._send(line, Message("join", step=step, edge=line.piece.number, body={"replica": self.replica}))

    def leave(self) -> None:
        """Tell the shards that the replica takes no more steps, so that nobody waits for it."""
        for line in self._lines:
            self._send(line, Message("leave", edge=line.piece.number, body={"replica": self.replica}))

    def drain(self) -> None:
        """Wait until all that was put or pushed is acknowledged."""
        self._await(lambda: [line for line in self._lines if line.unanswered])

    def statistics(self) -> dict[str, Any]:
        """Plain data: fetches, pushes, seconds spent waiting for either, and tensor bytes by shard."""
        shards = {line.shard: {"bytes_in": 0, "bytes_out": 0} for line in self._lines}
        for line in self._lines:
            shards[line.shard]["bytes_in"] += line.bytes_in
            shards[line.shard]["bytes_out"] += line.bytes_out
        blocked = {f"{what}_blocked_s": seconds for what, seconds in self._blocked_s.items()}
        return {"fetches": self._fetches, "pushes": self._pushes, **blocked, "shards": shards}

    def __repr__(self) -> str:
        versions: dict[str, list[int]] = {}
        for line in self._lines:
            versions.setdefault(line.shard, []).append(line.version)
        least = {shard: min(several) for shard, several in versions.items()}
        return f"Client({self.name}, versions={least}, fetching={self.fetching}, in_flight={self.in_flight})"

    def _push(self, line: _Line, gradient: Tensor, step: int, base: int | None) -> None:
        line.sent += 1
        self._away += gradient.nbytes
        body = {"base": line.version if base is None else base, "number": line.sent, "replica": self.replica}
        self._send(line, Message("push", step=step, edge=line.piece.number, body=body, tensors=(gradient,)))
        if self.local_rate == 0.0:
            return
        line.version += 1  # the caller's local step
        if line.fetching:
            line.later.append((line.sent, gradient))

    def _ask(self) -> None:
        """Ask for slices of the fetch while there is room for their values: some are asked for and not installed."""
        while self._unasked:
            line = self._unasked[0]
            size = line.piece.size * self.values.element_size()
            if self._asked and self._coming + size > self._window_bytes:
                return
            self._unasked.popleft()
            self._coming += size
            line.fetching = True
            self._asked[line.piece.number] = line
            body = {"at_least": self._at_least, "slowest": self._slowest, "replica": self.replica}
            self._send(line, Message("fetch", edge=line.piece.number, body=body))

    def _taken(self, line: _Line) -> tuple[_Line, Message] | None:
        message = self._mailbox.take(line.key("values"))
        return None if message is None else (line, message)

    def _install(self, line: _Line, message: Message, unpushed: Tensor | None) -> None:
        del self._asked[line.piece.number]
        line.fetching = False
        line.bytes_in += message.bytes
        values = line.of(self.values)
        self._coming -= values.nbytes
        values.copy_(message.tensors[0])
        # A shard takes one sender's messages in order, so what was pushed before the fetch is contained; a fetch that
        # waited at the shard contains later pushes too, up to number `applied`.
        own = [gradient for number, gradient in line.later if number > message.body["applied"]]
        line.later.clear()
        line.version = message.body["version"] + len(own)
        if unpushed is not None and self.local_rate != 0.0:
            own.append(line.of(unpushed))
        for gradient in own:
            values.add_(gradient, alpha=-self.local_rate)

    def _await_room(self, line: _Line) -> None:
        """Wait until one more push of a slice may be in flight: of this slice, and of the bytes of all."""
        size = line.piece.size * self.values.element_size()

        def wanted() -> list[_Line]:
            if line.sent - line.acknowledged >= self._unacknowledged:
                return [line]
            full = self._away and self._away + size > self._window_bytes
            return [other for other in self._lines if other.unanswered] if full else []

        self._await(wanted)

    def _await(self, wanted: Callable[[], list[_Line]]) -> None:
        """Wait for acknowledgements of the wanted lines until none are wanted."""
        if not wanted():
            return
        start = self._clock()
        self._collect()
        while lines := wanted():
            by_number = {line.piece.number: line for line in lines}
            message = self._mailbox.wait([key for line in lines for key in line.awaited])
            self._note(by_number[message.edge], message)
        self._blocked_s["push"] += self._clock() - start

    def _collect(self) -> None:
        """Take note of the acknowledgements that have come."""
        for line in self._lines:
            for key in line.awaited:
                while (message := self._mailbox.take(key)) is not None:
                    self._note(line, message)

    def _note(self, line: _Line, message: Message) -> None:
        if message.kind == "held":
            self._away -= line.putting
            line.putting = 0
            return
        number = message.body["number"]
        if number > line.sent:
            raise NetworkError(
                "E552", f"{self.name}: {line.shard} acknowledges push {number}; the last was {line.sent}"
            )
        self._away -= max(0, number - line.acknowledged) * line.piece.size * self.values.element_size()
        line.acknowledged = max(line.acknowledged, number)

    def _next(self, keys: Collection[Key], *, since: float) -> Message:
        while True:
            try:
                return self._mailbox.wait(keys)
            except SilenceError as error:
                if not self._at_least and self._slowest <= 0:
                    raise
                if self._clock() - since >= self._patience_s:
                    raise silence(self.name, self._patience_s, state=" (it waits for other replicas)") from error

    def _send(self, line: _Line, message: Message) -> None:
        line.bytes_out += message.bytes
        self._mailbox.send(line.shard, message)
