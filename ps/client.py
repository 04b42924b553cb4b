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


class _Line:
    """What one slice of the values and its shard are to each other."""

    def __init__(self, piece: Slice) -> None:
        self.piece = piece
        self.shard = f"shard-{piece.shard}"
        self.version = 0  # of the shard's values that the local values contain, own later pushes counted in
        self.sent = 0  # number of the last push
        self.acknowledged = 0
        self.fetching = False
        self.later: deque[tuple[int, Tensor]] = deque()  # pushes since the fetch was asked for
        self.bytes_in = 0
        self.bytes_out = 0

    def key(self, kind: str) -> Key:
        return (self.shard, kind, 0, 0, self.piece.machine)

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
        local_rate: float,
        unacknowledged: int = 8,
        patience_s: float = 24 * 3600.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Of the machine whose flat buffer is `values` [n], which fetches change in place and which needs no gradient.

        slices: those of this machine; they cover [0, n).
        local_rate: of the step that the worker takes itself with every gradient; 0 where it takes none.
        unacknowledged: pushes of a slice in flight; with more, `push` waits.
        patience_s: how long a fetch may wait for pushes of others (warm start); other waits end at the mailbox's.
        """
        self.values = values
        self.local_rate = local_rate
        self._mailbox = mailbox
        self._lines = [_Line(piece) for piece in slices]
        self._unacknowledged = unacknowledged
        self._patience_s = patience_s
        self._clock = clock
        self._awaits_others = False
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
        return any(line.fetching for line in self._lines)

    @property
    def in_flight(self) -> int:
        """Pushes that are not acknowledged yet, of the slice that has most of them."""
        return max((line.sent - line.acknowledged for line in self._lines), default=0)

    def put(self) -> None:
        """Give the shards the initial values; one replica does, once."""
        for line in self._lines:
            self._send(line, Message("put", edge=line.piece.machine, tensors=(line.of(self.values).clone(),)))

    def fetch(self, at_least: int = 0) -> None:
        """Ask all shards for the values, each once its slice had `at_least` pushes; returns at once."""
        if self.fetching:
            raise RuntimeError(f"{self.name} fetches while a fetch is under way; wait for it first")
        self._fetches += 1
        self._awaits_others = at_least > 0
        for line in self._lines:
            line.fetching = True
            self._send(line, Message("fetch", edge=line.piece.machine, body={"at_least": at_least}))

    def arrived(self, unpushed: Tensor | None = None) -> bool:
        """Install the slices that have come; whether the fetch is complete. For `unpushed` see `wait`."""
        for line in self._lines:
            if line.fetching and (message := self._mailbox.take(line.key("values"))) is not None:
                self._install(line, message, unpushed)
        return not self.fetching

    def wait(self, unpushed: Tensor | None = None) -> None:
        """Install every slice of the fetch; returns at once where none is under way.

        unpushed: gradients [n] that were computed and not pushed yet; with a local rate their step is taken again.
        """
        start = self._clock()
        while waiting := [line for line in self._lines if line.fetching]:
            message = self._next([line.key("values") for line in waiting], since=start)
            self._install(next(line for line in waiting if line.shard == message.sender), message, unpushed)
        self._blocked_s["fetch"] += self._clock() - start

    def push(self, gradients: Tensor, step: int) -> None:
        """Send a copy of `gradients` [n] to the shards. With a local rate, the caller has taken their step."""
        self._collect()
        self._acknowledge(within=self._unacknowledged - 1)
        self._pushes += 1
        for line in self._lines:
            self._push(line, line.of(gradients).clone(), step)

    def drain(self) -> None:
        """Wait until every push is acknowledged."""
        self._acknowledge(within=0)

    def statistics(self) -> dict[str, Any]:
        """Plain data: fetches, pushes, seconds spent waiting for either, and tensor bytes by shard."""
        shards = {line.shard: {"bytes_in": line.bytes_in, "bytes_out": line.bytes_out} for line in self._lines}
        blocked = {f"{what}_blocked_s": seconds for what, seconds in self._blocked_s.items()}
        return {"fetches": self._fetches, "pushes": self._pushes, **blocked, "shards": shards}

    def __repr__(self) -> str:
        versions = {line.shard: line.version for line in self._lines}
        return f"Client({self.name}, versions={versions}, fetching={self.fetching}, in_flight={self.in_flight})"

    def _push(self, line: _Line, gradient: Tensor, step: int) -> None:
        line.sent += 1
        body = {"base": line.version, "number": line.sent}
        self._send(line, Message("push", step=step, edge=line.piece.machine, body=body, tensors=(gradient,)))
        if self.local_rate == 0.0:
            return
        line.version += 1  # the caller's local step
        if line.fetching:
            line.later.append((line.sent, gradient))

    def _install(self, line: _Line, message: Message, unpushed: Tensor | None) -> None:
        line.fetching = False
        line.bytes_in += message.bytes
        values = line.of(self.values)
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

    def _acknowledge(self, *, within: int) -> None:
        """Wait until each slice has at most `within` pushes in flight."""
        start = self._clock()
        while waiting := [line for line in self._lines if line.sent - line.acknowledged > within]:
            message = self._mailbox.wait([line.key("pushed") for line in waiting])
            self._note(next(line for line in waiting if line.shard == message.sender), message)
        self._blocked_s["push"] += self._clock() - start

    def _collect(self) -> None:
        """Take note of the acknowledgements that have come."""
        for line in self._lines:
            while (message := self._mailbox.take(line.key("pushed"))) is not None:
                self._note(line, message)

    def _note(self, line: _Line, message: Message) -> None:
        number = message.body["number"]
        if number > line.sent:
            raise NetworkError(
                "E552", f"{self.name}: {line.shard} acknowledges push {number}; the last was {line.sent}"
            )
        line.acknowledged = max(line.acknowledged, number)

    def _next(self, keys: Collection[Key], *, since: float) -> Message:
        while True:
            try:
                return self._mailbox.wait(keys)
            except SilenceError as error:
                if not self._awaits_others:
                    raise
                if self._clock() - since >= self._patience_s:
                    raise silence(
                        self.name, self._patience_s, state=" (it waits for the pushes of replica 0)"
                    ) from error

    def _send(self, line: _Line, message: Message) -> None:
        line.bytes_out += message.bytes
        self._mailbox.send(line.shard, message)
