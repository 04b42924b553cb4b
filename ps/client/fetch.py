"""`Fetching`: how values come from the shards, slice by slice, and what they become for the worker."""

from collections import deque
from typing import Any

from torch import Tensor

from ...runtime.worker.flat_gradient import Gradient
from ...runtime.channel.mailbox import Key
from ...runtime.channel.message import Message
from .slice_session import Line
from .sessions import Lines
from ..slices.sparse_rows import Rows, descend, install, received_rows
from ..slices.skew import Skew


class Fetching:
    """Of one client, one fetch after the other. values: the flat buffer [n] that they change in place.

    behind: of the lines that are not asked yet, those that are to be pushed first. count: of fetches so far.
    """

    def __init__(self, lines: Lines, values: Tensor, *, local_rate: float, replica: int, window_bytes: int) -> None:
        """As of `Client`."""
        self.values = values
        self.behind = 0
        self.count = 0
        self._lines = lines
        self._local_rate = local_rate
        self._replica = replica
        self._window_bytes = window_bytes
        self._at_least = 0  # the version that it waits for
        self._slowest = 0  # steps of every replica that it waits for
        self._changes = False  # whether it brings only what changed
        self._unasked = deque[Line]()
        self._asked: dict[int, Line] = {}  # by number of the slice
        self._coming = 0  # bytes that were asked for
        self._skew = Skew()

    @property
    def under_way(self) -> bool:
        """Whether one was begun and is not installed yet."""
        return bool(self._asked or self._unasked)

    @property
    def patient(self) -> bool:
        """Whether it waits for others."""
        return self._at_least > 0 or self._slowest > 0

    @property
    def awaited(self) -> list[Key]:
        """The values that are to come."""
        return [line.values_key for line in self._asked.values()]

    def begin(self, at_least: int, slowest: int, *, changes: bool) -> None:
        """A fetch begins; nothing is asked for yet. RuntimeError where one is under way."""
        if self.under_way:
            raise RuntimeError(f"{self._lines.name} fetches while a fetch is under way; wait for it first")
        self.count += 1
        self._at_least, self._slowest, self._changes = at_least, slowest, changes
        self._unasked.extend(self._lines)

    def ask(self) -> None:
        """Ask for slices of the fetch while there is room for their values: some are asked for and not installed."""
        while len(self._unasked) > self.behind:
            line = self._unasked[0]
            message = self._next()
            if message is None:
                return
            self._lines.send(line, message)

    def along(self, line: Line) -> Message | None:
        """What asks for this slice, to be sent with its push; None where it is not its turn, or there is no room."""
        return self._next() if self.behind and self._unasked[0] is line else None

    def _next(self) -> Message | None:
        """What asks for the next slice; None where there is no room for its values."""
        line = self._unasked[0]
        body = {"at_least": self._at_least, "slowest": self._slowest, "replica": self._replica}
        if self._changes and line.held is not None:
            body["since"] = line.held
        size = line.expected if "since" in body else line.piece.size * self.values.element_size()
        if self._asked and self._coming + size > self._window_bytes:
            return None
        self._unasked.popleft()
        self._coming += size
        line.coming = size
        self._asked[line.piece.number] = line
        line.asked = Message("fetch", step=self.count, edge=line.piece.number, body=body)
        return line.asked

    def arrived(self, unpushed: Tensor | Gradient | None = None) -> bool:
        """Install the slices that have come; whether the fetch is complete. For `unpushed` see `Client.wait`."""
        while found := [message for message in map(self._lines.mailbox.take, self.awaited) if message is not None]:
            for message in found:
                self._install(message, unpushed)
            self.ask()
        return not self.under_way

    def receive(self, message: Message, unpushed: Tensor | Gradient | None = None) -> None:
        """A slice has come: the values are changed, and more is asked for."""
        self._install(message, unpushed)
        self.ask()

    @property
    def skew(self) -> dict[str, Any]:
        """Plain data: how far apart the slices' versions were."""
        return self._skew.statistics()

    def __repr__(self) -> str:
        return f"Fetching({self.count}, {len(self._unasked)} unasked, {len(self._asked)} asked)"

    def _install(self, message: Message, unpushed: Tensor | Gradient | None) -> None:
        line = self._asked.pop(message.edge)
        line.asked = line.put = None
        self._lines.holds(line)
        line.bytes_in += message.bytes
        self._coming -= line.coming
        line.expected, line.held = message.bytes, message.body["version"]
        if not self.under_way:
            self._skew.add([one.held for one in self._lines if one.held is not None])
        values = line.of(self.values)
        rows = received_rows(message.body, message.tensors, line.piece, values.dtype)
        unchanged = message.body.get("unchanged", False)
        if rows is not None:
            install(values, rows)
        elif not unchanged:
            values.copy_(message.tensors[0])
        own = self._uncontained(line, message.body["applied"])
        line.version = message.body["version"] + len(own)
        if self._local_rate == 0.0 or unchanged:
            return
        own += [rest for rest in (line.packer.residual,) if rest is not None]
        if unpushed is not None:
            own.append(line.of(unpushed.flat if isinstance(unpushed, Gradient) else unpushed))
        for gradient in own:
            descend(values, gradient, self._local_rate, among=rows)

    def _uncontained(self, line: Line, applied: int) -> list[Tensor | Rows]:
        """Gradients that were pushed and that the values lack.

        A shard takes one sender's messages in order, so what was pushed before the fetch is contained, unless it was
        lost and is yet to be sent again; a fetch that waited at the shard contains later pushes too, up to number
        `applied`.
        """
        size, dtype = line.piece.size, self.values.dtype
        own = [packed.gradient(size, dtype) for number, packed in line.later if number > applied]
        line.later.clear()
        return own
