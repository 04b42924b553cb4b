"""`Served`: one slice as its shard serves it - its values, who has pushed what, and which fetches wait."""

from collections.abc import Callable, Mapping

import msgspec
import torch
from torch import Tensor

from ...errors import NetworkError
from ...runtime.channel.message import Message
from .replies import Replies, broken
from .rendezvous import Board
from .step_clocks import Clocks
from .durability import Disk
from .pending_fetches import Fetch, Fetches
from .gradient_aggregation import Gathering, Pushed
from ..slices.slice_state import Holding, Record
from ..slices.slicing import Slice
from ..client.slice_session import FETCH
from ..methods.method import Serving
from ..slices.push_payload import received
from ..slices.sparse_rows import Rows, received_rows
from ..optimizers.optimizer import Update
from ..slices.staleness import Staleness


class Served:
    """Of the shard with this number. Its methods take the messages of the same names and give the answers.

    holding: None until there are values; board: what workers leave for each other.
    """

    def __init__(
        self,
        shard: int,
        piece: Slice,
        serving: Serving,
        disk: Disk,
        *,
        holding: Holding | None = None,
        steps: Mapping[int, int] | None = None,
        copy: Callable[[Tensor], Tensor] = torch.clone,
    ) -> None:
        """holding, steps: what a file has of it, and of the replicas. copy: as of `Shard`."""
        if holding is not None:
            holding.value, holding.copy = copy(holding.value), copy
        self.shard, self.piece, self.holding = shard, piece, holding
        self.board = Board()
        self.record = Record()
        self.clocks = Clocks(serving.replicas, steps)
        self._serving = serving
        self._disk = disk
        self._copy = copy
        self._restored = holding is not None
        self._gathering = Gathering()
        self._fetches = Fetches(piece)
        self._leaving: dict[str, int] = {}  # by client: the number of its last push

    @property
    def version(self) -> int | None:
        """Of the values; None where there are none."""
        return None if self.holding is None else self.holding.version

    @property
    def waiting(self) -> int:
        """How many fetches wait."""
        return len(self._fetches)

    def put(self, message: Message) -> Replies:
        """Values, which count where it has none of their version or a later."""
        version, names = message.body.get("version", 0), message.body.get("state", [])
        held = self.holding
        shapes, size = [list(t.shape) for t in message.tensors], self.piece.size
        if not isinstance(version, int) or not isinstance(names, list) or shapes != [[size]] * (1 + len(names)):
            what = f"has tensors of shapes {shapes} for version {version!r} with {names!r}"
            raise self.broken(message, f"{what}; the slice is one of [{size}]")
        # A replica that was started again does not know how far it had come with the initial values.
        if held is None or held.version < version:
            self._disk.before(self.piece.number)
            value, states = self._copy(message.tensors[0]), [tensor.clone() for tensor in message.tensors[1:]]
            state = dict(zip(names, states, strict=True)) or self._serving.rule.state(value)
            self._fetches.changes.add(version, None)
            applied = {} if held is None else held.applied
            self.holding = Holding(self.piece, value, state, version, applied, self._copy)
        return [(message.sender, Message("held", edge=self.piece.number)), *self.due()]

    def fetch(self, message: Message) -> Replies:
        """It waits until its time has come."""
        return self._add(message, self._fetch(message))

    def push(self, message: Message) -> Replies:
        """A gradient: applied once, however often it comes."""
        if self.holding is None:
            raise self.broken(message, "came before the initial values")
        holding, sender = self.holding, message.sender
        try:
            gradient = self._gradient(holding, message)
        except ValueError as error:
            raise self.broken(message, str(error)) from error
        number, replica = self.number(message, "number"), self.number(message, "replica")
        fetch = self._along(message)
        push = Pushed(sender, number, message.step, replica, gradient)
        if message.body.get("hurry"):
            self._disk.hurry()
        applied = holding.applied.get(sender, 0)
        last = max(applied, self._gathering.last(sender))
        if number > last + 1:  # some were lost, on the way or with who had this shard before
            body = {"number": last, "attempt": message.body.get("attempt", 0)}
            return [(sender, Message("again", edge=self.piece.number, body=body)), *self._add(message, fetch)]
        if number > last:
            done = self._new(holding, message, push)
        else:
            self.record.duplicates += 1
            done = [push] if number <= applied else []
        return [*(self._pushed(holding, one) for one in done), *self._add(message, fetch)]

    def join(self, message: Message) -> Replies:
        """A replica takes part from some step on."""
        replica = self.number(message, "replica")
        if not message.body.get("asks"):
            self.clocks.joined(replica, message.step)
            return self.due()
        step = self.clocks.joins(replica, message.step)
        return [(message.sender, Message("joined", edge=self.piece.number, body={"step": step})), *self.due()]

    def leave(self, message: Message) -> Replies:
        """A replica takes no more steps; answered by `left`."""
        self.clocks.left(self.number(message, "replica"))
        holding = self.holding
        done = self._gathered(holding) if holding else []
        self._leaving[message.sender] = self.number(message, "number")
        self._disk.hurry()
        self._disk.before(self.piece.number)
        return [*(self._pushed(holding, one) for one in done if holding), *self.due()]

    def left(self) -> Replies:
        """Answers to those that have left and whose pushes are on the disk."""
        gone = [client for client, number in self._leaving.items() if self._secured(client) >= number]
        for client in gone:
            del self._leaving[client]
        return [(client, Message("left", edge=self.piece.number)) for client in gone]

    def due(self) -> Replies:
        """Answers to the fetches that need wait no longer."""
        holding = self.holding
        if holding is None or not self.waiting or not self._disk.safe:
            return []
        return [(fetch.client, self._values(holding, fetch)) for fetch in self._fetches.due(holding, self.clocks)]

    def number(self, message: Message, name: str) -> int:
        """A count that the message's body has to have."""
        value = message.body.get(name)
        if not isinstance(value, int) or value < 0:
            raise self.broken(message, f"has {name} = {value!r}, which is no count")
        return value

    def broken(self, message: Message, facts: str) -> NetworkError:
        """The error of a message that breaks the protocol."""
        return broken(self.shard, self.piece, message, facts)

    def __repr__(self) -> str:
        return f"Served({self.piece}, version={self.version}, {self.clocks}, waiting={self.waiting})"

    def _fetch(self, message: Message) -> Fetch:
        """What a message asks for."""
        replica, at_least, slowest = (self.number(message, name) for name in ("replica", "at_least", "slowest"))
        since = self.number(message, "since") if "since" in message.body else None
        return Fetch(message.sender, message.step, replica, at_least, slowest, since)

    def _along(self, push: Message) -> Fetch | None:
        """The fetch that a push brings along."""
        body = push.body.get(FETCH)
        if body is None:
            return None
        if not isinstance(body, dict):
            raise self.broken(push, f"brings {body!r} along, which is no fetch")
        asking = msgspec.structs.replace(push, body=body, tensors=())
        return self._fetch(msgspec.structs.replace(asking, step=self.number(asking, "step")))

    def _add(self, message: Message, fetch: Fetch | None) -> Replies:
        """One more fetch waits, which a message has brought; answers to all that need wait no longer."""
        try:
            if fetch is not None:
                self._fetches.add(fetch)
        except ValueError as error:
            raise self.broken(message, str(error)) from error
        return self.due()

    def _gradient(self, holding: Holding, message: Message) -> Tensor | Rows:
        """What a push brings; ValueError where it is no gradient of the slice."""
        rows = received_rows(message.body, message.tensors, self.piece, holding.value.dtype)
        if rows is not None:
            return rows
        return received(message.body, message.tensors).gradient(self.piece.size, holding.value.dtype)

    def _new(self, holding: Holding, message: Message, push: Pushed) -> list[Pushed]:
        """Take a push in; those that are done with now."""
        base = self.number(message, "base")
        if base > holding.version and not self._restored:
            raise self.broken(message, f"builds on version {base}; the slice has {holding.version}")
        tau = max(0, holding.version - base)
        self.clocks.pushed(push.replica, push.step)
        self.record.pushes += 1
        self.record.staleness.setdefault(push.sender, Staleness()).add(tau)
        if not self._serving.gather:
            self._apply(holding, push, Update(holding.version + 1, tau, push.replica))
            return [push]
        if tau > 0:
            self.record.late += 1
            self._disk.before(self.piece.number)
            holding.applied[push.sender] = push.number
            return [push]
        self._gathering.add(base, push.replica, push)
        return self._gathered(holding)

    def _gathered(self, holding: Holding) -> list[Pushed]:
        """Make updates of the pushes that wait, as far as they are enough; those that are done with now."""
        done, enough = list[Pushed](), min(self._serving.gather, self.clocks.replicas)
        while self._gathering.count(holding.version) >= max(1, enough):
            pushes, mean = self._gathering.take(holding.version, self.piece.size)
            update = Update(holding.version + 1, 0, pushes[0].replica)
            self._apply(holding, msgspec.structs.replace(pushes[0], gradient=mean), update)
            for push in pushes:
                holding.applied[push.sender] = push.number
            done += pushes
        return done

    def _apply(self, holding: Holding, push: Pushed, update: Update) -> None:
        self._disk.before(self.piece.number)
        rule, gradient, changes = self._serving.rule, push.gradient, self._fetches.changes
        if isinstance(gradient, Rows):
            numbers, values = gradient.numbers, gradient.values
            holding.apply_rows(rule, numbers, values, update, worker=push.sender, step=push.step)
            changes.add(holding.version, numbers)
        else:
            holding.apply(rule, gradient, update, worker=push.sender, step=push.step)
            changes.add(holding.version, None)
        holding.applied[push.sender] = push.number
        self.record.updates += 1
        self.record.rates += rule.rate(update)

    def _pushed(self, holding: Holding, push: Pushed) -> tuple[str, Message]:
        durable = self._disk.durable(self.piece.number, push.sender, push.number)
        body = {"version": holding.version, "number": push.number, "durable": durable}
        return push.sender, Message("pushed", edge=self.piece.number, body=body)

    def _secured(self, client: str) -> int:
        """The last push of a client that need not be kept any more."""
        applied = 0 if self.holding is None else self.holding.applied.get(client, 0)
        return self._disk.secured(self.piece.number, client, applied)

    def _values(self, holding: Holding, fetch: Fetch) -> Message:
        rule = self._serving.rule
        if rule.delayed:  # it may change what it remembers
            self._disk.before(self.piece.number)
        rule.fetched(holding.value, holding.state, fetch.replica)
        reply = self._fetches.answer(fetch, holding)
        self.record.fetches += 1
        self.record.bytes_out += reply.bytes
        return reply
