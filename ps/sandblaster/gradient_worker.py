"""`BatchWorker`: one machine's part of a replica that computes gradients of portions for a batch method.

Machine 0, the leader, asks the coordinator for chunks and tells the others. Each machine gets its slices of the point
from the shards, adds up what its portions come to, and sends the shards that; then it tells the coordinator.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from torch import Tensor

from ...runtime.launcher.assignment import LAUNCHER
from ...runtime.worker.flat_gradient import Gradient
from ...runtime.channel.mailbox import Key, Mailbox
from ...runtime.channel.message import Message
from .work_queue import Chunk
from ..slices.slicing import Slice
from .solver import Portions
from .tree_sum import PortionSum

PATIENCE_S = 7 * 24 * 3600.0  # for others
MOVED: Key = (LAUNCHER, "moved", 0, 0, 0)  # {"shard", "name"} of a shard that takes the place of one that was lost
COORDINATED: Key = (LAUNCHER, "coordinated", 0, 0, 0)  # {"name"} of a coordinator that does

Compute = Callable[[int, int], float | None]  # of portion and step: adds its gradient to `gradient`; its mean loss


class BatchWorker:
    """Of the machine whose parameters are `values` [n].

    slices: its own; they cover [0, n). leader: the name of machine 0, where this is another. followers: of the others,
    where this is machine 0. progress: is told how many portions are done before each, and None before it waits for
    others, so that neither counts as being stuck.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        slices: Sequence[Slice],
        values: Tensor,
        gradient: Gradient,
        compute: Compute,
        portions: Portions,
        *,
        coordinator: str,
        leader: str = "",
        followers: Sequence[str] = (),
        progress: Callable[[int | None], object] = lambda done: None,
    ) -> None:
        self.portions_done = 0
        self.bytes_in = self.bytes_out = 0
        self._mailbox, self._slices = mailbox, list(slices)
        self.values, self._gradient, self._compute, self._portions = values, gradient, compute, portions
        self._coordinator, self._leader, self._followers = coordinator, leader, followers
        self._progress = progress
        self._names = {piece.shard: f"shard-{piece.shard}" for piece in slices}
        self._asks = 0  # by which answers are known
        self._taken = 0  # chunks
        self._asking: tuple[str, int] | None = None  # of whom a chunk was asked for, and by which number
        self._unsummed: dict[int, tuple[Slice, int]] = {}  # by slice: gradients on their way

    def run(self) -> None:
        """Work until the coordinator says that it is over."""
        while (chunk := self._next()) is not None:
            wanted = self._get("point", "point", {name: getattr(chunk, name) for name in ("epoch", "number", "place")})
            if not wanted and self._alone:
                continue
            total, losses = self._computed(chunk)
            self._push(chunk, total)
            body = {**msgspec.to_builtins(chunk), "losses": None if None in losses else losses}
            self._mailbox.send(self._coordinator, Message("done", body=body))

    def read(self) -> None:
        """Get the parameters as they are."""
        self._get("read", "values", {})

    def told(self, kind: str) -> dict[str, Any]:
        """Wait for a message of the launcher; its body."""
        return self._led((LAUNCHER, kind, 0, 0, 0)).body

    def _next(self) -> Chunk | None:
        """The next chunk, of which the leader tells the others; None where it is over."""
        self._taken += 1
        key = (self._leader, "chunk", self._taken, 0, 0)
        message = self._led(key) if self._leader else self._asked()
        for name in self._followers:
            self._mailbox.send(name, Message("chunk", self._taken, body=message.body))
        return None if message.body.get("over") else msgspec.convert(message.body, Chunk)

    @property
    def _alone(self) -> bool:
        """Whether no other machine has to do the same."""
        return not self._leader and not self._followers

    def _led(self, key: Key) -> Message:
        while (message := self._hear([key])) is None:
            pass
        return message

    def _ask(self) -> None:
        """Ask the coordinator for a chunk, unless it was."""
        if not self._asking or self._asking[0] != self._coordinator:
            self._asks += 1
            self._asking = self._coordinator, self._asks
            self._mailbox.send(self._coordinator, Message("ask", self._asks))

    def _asked(self) -> Message:
        """The coordinator's answer; whoever takes its place is asked again."""
        while True:
            self._ask()
            assert self._asking is not None
            coordinator, number = self._asking
            message = self._hear([(coordinator, "chunk", number, 0, 0)])
            if message is not None:
                self._asking = None
                return message

    def _get(self, kind: str, answer: str, body: dict[str, Any]) -> bool:
        """Have the shards fill `values`; whether they all did, since they knew of what was asked for."""
        self._asks += 1
        known = True
        wanted = {piece.number: piece for piece in self._slices}

        def ask(pieces: Sequence[Slice]) -> None:
            for piece in pieces:
                self._mailbox.send(self._names[piece.shard], Message(kind, self._asks, edge=piece.number, body=body))

        ask(self._slices)
        while wanted:
            names = dict(self._names)
            keys = [(names[piece.shard], answer, self._asks, 0, n) for n, piece in wanted.items()]
            message = self._hear(keys)
            if message is not None:
                piece = wanted.pop(message.edge)
                self.bytes_in += message.bytes
                known = known and bool(message.tensors)
                if message.tensors:
                    self.values[piece.start : piece.stop].copy_(message.tensors[0])
            ask([piece for piece in wanted.values() if self._names[piece.shard] != names[piece.shard]])
        return known

    def _computed(self, chunk: Chunk) -> tuple[Tensor, list[float | None]]:
        """The sum over the samples of a chunk's portions [n], and the portions' mean losses."""
        those, losses = chunk.portions, list[float | None]()
        tree = PortionSum(len(those))
        for position, portion in enumerate(those):
            if position == len(those) - 1 and not self._leader:
                self._ask()  # so that the next is there when this one is done
            self._progress(self.portions_done)
            self._gradient.zero()
            losses.append(self._compute(portion, self.portions_done))
            tree.add(0, position, self._gradient.flat * self._portions.within(portion, portion + 1))
            self.portions_done += 1
        total = tree.total
        assert total is not None
        return total, losses

    def _push(self, chunk: Chunk, total: Tensor) -> None:
        """Send the shards the sum, once they have the last."""
        while self._unsummed:
            keys = [(self._names[p.shard], "summed", step, 0, n) for n, (p, step) in self._unsummed.items()]
            message = self._hear(keys)
            if message is not None:
                del self._unsummed[message.edge]
        self._asks += 1
        for piece in self._slices:
            body = msgspec.to_builtins(chunk)
            tensors = (total[piece.start : piece.stop],)
            message = Message("gradient", self._asks, edge=piece.number, body=body, tensors=tensors)
            self.bytes_out += message.bytes
            self._mailbox.send(self._names[piece.shard], message)
            self._unsummed[piece.number] = piece, self._asks

    def _hear(self, wanted: Sequence[Key]) -> Message | None:
        """The next of the wanted messages; None where others have taken the places of some that were lost."""
        self._progress(None)
        message = self._mailbox.wait([*wanted, MOVED, COORDINATED], timeout_s=PATIENCE_S)
        if message.kind == "moved" and message.sender == LAUNCHER:
            shard = message.body["shard"]
            self._names[shard] = message.body["name"]
            # What was sent to the one before belongs to an epoch that is over.
            self._unsummed = {n: one for n, one in self._unsummed.items() if one[0].shard != shard}
            return None
        if message.kind == "coordinated":
            self._coordinator = message.body["name"]
            return None
        return message
