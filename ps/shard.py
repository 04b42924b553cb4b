"""`Shard`: one parameter server. `handle` is its whole protocol, without I/O or clock; `serve` joins it to a channel.

A slice is named by the `edge` of a message, its number in the layout. The messages, and the answers:
  put     values [n]                          "held", once the slice has any: the first count
  fetch   {at_least, slowest, replica}        "values" {version, applied} values [n], once the slice has that version
                                              and every replica has pushed so many steps
  push    {base, number, replica} gradient [n]  "pushed" {version, number}, after the rule was applied
  join    {replica}                           nothing; the replica is about to take the message's step
  leave   {replica}                           nothing; the replica takes no more steps
base: version of the values that the gradient was computed on, for accrued gradients the last of them. number: 1, 2, 3,
... for each client and slice; one that came before is acknowledged and not applied. applied: the number of the asking
client's last push that the values contain.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from torch import Tensor

from ..partition.errors import NetworkError
from ..runtime.assignment import LAUNCHER
from ..runtime.beacon import Beacon
from ..runtime.channel import Channel, SilenceError, silence
from ..runtime.mailbox import Stopped
from ..runtime.message import Message
from .checkpoint_files import write_shard
from .clocks import Clocks
from .gathering import Gathering, Pushed
from .holding import Holding, Record, together
from .layout import Slice, of_machine, spans
from .method import Serving
from .rule import Update
from .staleness import Staleness

Replies = list[tuple[str, Message]]
DEFERRED_MOST = 4096  # fetches of a slice that wait for a later version; a client waits with one


class _Fetch(NamedTuple):
    """One that waits."""

    client: str
    step: int
    replica: int
    at_least: int
    slowest: int


class Shard:
    """Holds slices of the parameters and applies a rule to them."""

    def __init__(self, index: int, slices: Iterable[Slice], serving: Serving, *, held: Iterable[Holding] = ()) -> None:
        """held: slices as a checkpoint has them; those need no "put"."""
        self.index = index
        self.serving = serving
        self.rule = serving.rule
        self._slices = {piece.number: piece for piece in slices}
        self._held = {holding.slice.number: holding for holding in held}
        self._records = {number: Record() for number in self._slices}
        self._deferred: dict[int, list[_Fetch]] = defaultdict(list)
        self._clocks = {number: Clocks(serving.replicas) for number in self._slices}
        self._gatherings = {number: Gathering() for number in self._slices}

    def handle(self, message: Message) -> Replies:
        """Take in one message; the answers to it and to fetches that waited for it."""
        piece = message.edge
        if piece not in self._slices:
            raise self._broken(message, f"names slice {piece}; this shard has {spans(self._slices)}")
        self._records[piece].bytes_in += message.bytes
        match message.kind:
            case "put":
                return self._put(piece, message)
            case "fetch":
                return self._fetch(piece, message)
            case "push":
                return self._push(piece, message)
            case "join":
                self._clocks[piece].joined(self._number(message, "replica"), message.step)
                return self._due(piece)
            case "leave":
                return self._leave(piece, message)
        raise self._broken(message, "is of an unknown kind")

    def holdings(self) -> list[Holding]:
        """Every slice with its values, for a checkpoint; NetworkError where one was never put."""
        missing = sorted(self._slices.keys() - self._held.keys())
        if missing:
            machines = sorted({self._slices[number].machine for number in missing})
            raise NetworkError("E551", f"shard-{self.index} never got initial values of machines {machines}")
        return [self._held[number] for number in sorted(self._held)]

    def statistics(self) -> dict[str, Any]:
        """Plain data: the shard's number, its rule, and what it holds of every machine with what happened to that.

        version: the smallest of a machine's slices. Counts are sums over them, so a push counts once for each.
        """
        machines = sorted({piece.machine for piece in self._slices.values()})
        slices = [self._of_machine(machine) for machine in machines]
        return {"shard": self.index, "rule": msgspec.to_builtins(self.rule), "slices": slices}

    def __repr__(self) -> str:
        versions = {piece["machine"]: piece["version"] for piece in self.statistics()["slices"]}
        return (
            f"Shard({self.index}, {self.rule}, versions={versions}, deferred={sum(map(len, self._deferred.values()))})"
        )

    def _of_machine(self, machine: int) -> dict[str, Any]:
        pieces = of_machine(self._slices.values(), machine)
        versions = [self._version(piece.number) for piece in pieces]
        held = [version for version in versions if version is not None]
        return {
            "shard": self.index,
            "machine": machine,
            "start": min(piece.start for piece in pieces),
            "stop": max(piece.stop for piece in pieces),
            "slices": len(pieces),
            "version": min(held) if len(held) == len(versions) else None,
            "clock_gap": max(self._clocks[piece.number].gap for piece in pieces),
            **together(self._records[piece.number] for piece in pieces).statistics(),
        }

    def _put(self, piece: int, message: Message) -> Replies:
        value = self._payload(piece, message)
        if piece not in self._held:  # a replica that was started again does not know how far it had come with these
            value = value.clone()
            self._held[piece] = Holding(self._slices[piece], value, self.rule.state(value))
        return [(message.sender, Message("held", edge=piece)), *self._due(piece)]

    def _fetch(self, piece: int, message: Message) -> Replies:
        if len(self._deferred[piece]) == DEFERRED_MOST:
            raise self._broken(message, f"comes while {DEFERRED_MOST} fetches wait for pushes that were never made")
        counts = (self._number(message, name) for name in ("replica", "at_least", "slowest"))
        self._deferred[piece].append(_Fetch(message.sender, message.step, *counts))
        return self._due(piece)

    def _push(self, piece: int, message: Message) -> Replies:
        gradient = self._payload(piece, message)
        holding = self._held.get(piece)
        if holding is None:
            raise self._broken(message, "came before the initial values")
        if gradient.dtype != holding.value.dtype:
            raise self._broken(message, f"has a {gradient.dtype} gradient for {holding.value.dtype} values")
        push = Pushed(message.sender, self._number(message, "number"), message.step, gradient)
        done = self._new(holding, message, push) if self._is_new(holding, message, push) else [push]
        return [*(self._pushed(holding, one) for one in done), *self._due(piece)]

    def _is_new(self, holding: Holding, message: Message, push: Pushed) -> bool:
        last = holding.applied.get(push.sender, 0)
        if push.number > last + 1:
            lost = push.number - last - 1
            raise self._broken(message, f"has number {push.number}; expected {last + 1}, so {lost} are lost")
        if push.number <= last:
            self._records[holding.slice.number].duplicates += 1
        return push.number > last

    def _new(self, holding: Holding, message: Message, push: Pushed) -> list[Pushed]:
        """Take a push in; those that are done with now."""
        piece, replica = holding.slice.number, self._number(message, "replica")
        tau = holding.version - self._number(message, "base")
        if tau < 0:
            raise self._broken(message, f"builds on version {holding.version - tau}; the slice has {holding.version}")
        record = self._records[piece]
        gathering = self._gatherings[piece]
        if gathering.has(push.sender, push.number):
            record.duplicates += 1
            return []
        self._clocks[piece].pushed(replica, push.step)
        record.pushes += 1
        record.staleness.setdefault(push.sender, Staleness()).add(tau)
        if not self.serving.gather:
            self._apply(holding, push, Update(holding.version + 1, tau, replica))
            return [push]
        if tau > 0:
            record.late += 1
            holding.applied[push.sender] = push.number
            return [push]
        gathering.add(replica, push)
        return self._gathered(holding)

    def _gathered(self, holding: Holding) -> list[Pushed]:
        """Make an update of the pushes that wait, if they are enough; those that are done with now."""
        piece = holding.slice.number
        gathering = self._gatherings[piece]
        if not gathering or len(gathering) < min(self.serving.gather, self._clocks[piece].replicas):
            return []
        replica = min(gathering.pushes)
        pushes, mean = gathering.take()
        self._apply(holding, msgspec.structs.replace(pushes[0], gradient=mean), Update(holding.version + 1, 0, replica))
        for push in pushes:
            holding.applied[push.sender] = push.number
        return pushes

    def _apply(self, holding: Holding, push: Pushed, update: Update) -> None:
        holding.apply(self.rule, push.gradient, update, worker=push.sender, step=push.step)
        holding.applied[push.sender] = push.number

    def _pushed(self, holding: Holding, push: Pushed) -> tuple[str, Message]:
        body = {"version": holding.version, "number": push.number}
        return push.sender, Message("pushed", edge=holding.slice.number, body=body)

    def _leave(self, piece: int, message: Message) -> Replies:
        self._clocks[piece].left(self._number(message, "replica"))
        holding = self._held.get(piece)
        done = self._gathered(holding) if holding else []
        return [*(self._pushed(holding, one) for one in done if holding), *self._due(piece)]

    def _due(self, piece: int) -> Replies:
        """Answers to the fetches that need wait no longer."""
        holding = self._held.get(piece)
        if holding is None or not self._deferred[piece]:
            return []
        slowest = self._clocks[piece].slowest
        waiting: list[_Fetch] = []
        due: list[_Fetch] = []
        for fetch in self._deferred[piece]:
            ready = fetch.at_least <= holding.version and (slowest is None or fetch.slowest <= slowest)
            (due if ready else waiting).append(fetch)
        self._deferred[piece] = waiting
        return [(fetch.client, self._values(holding, fetch)) for fetch in due]

    def _values(self, holding: Holding, fetch: _Fetch) -> Message:
        body = {"version": holding.version, "applied": holding.applied.get(fetch.client, 0)}
        self.rule.fetched(holding.value, holding.state, fetch.replica)
        # A clone: the channel may read it long after the next push has changed the slice.
        reply = Message(
            "values", step=fetch.step, edge=holding.slice.number, body=body, tensors=(holding.value.clone(),)
        )
        record = self._records[holding.slice.number]
        record.fetches += 1
        record.bytes_out += reply.bytes
        return reply

    def _version(self, piece: int) -> int | None:
        holding = self._held.get(piece)
        return None if holding is None else holding.version

    def _payload(self, piece: int, message: Message) -> Tensor:
        shapes, size = [list(t.shape) for t in message.tensors], self._slices[piece].size
        if shapes != [[size]]:
            raise self._broken(message, f"has tensors of shapes {shapes}; the slice is one of [{size}]")
        return message.tensors[0]

    def _number(self, message: Message, name: str) -> int:
        value = message.body.get(name)
        if not isinstance(value, int) or value < 0:
            raise self._broken(message, f"has {name} = {value!r}, which is no count")
        return value

    def _broken(self, message: Message, facts: str) -> NetworkError:
        piece = self._slices.get(message.edge)
        there = "" if piece is None else f" of machine {piece.machine}"
        return NetworkError(
            "E550",
            f"shard-{self.index}: message {message.kind!r} of {message.sender} for slice {message.edge}{there} "
            f"(step {message.step}) {facts}",
            fix="check that all roles belong to this run and are of one version of cutset; then start the run again",
        )


def serve(
    shard: Shard,
    channel: Channel,
    *,
    beacon: Beacon | None = None,
    interval_s: float = 1.0,
    timeout_s: float = 600.0,
) -> dict[str, Any]:
    """Answer messages until the launcher sends "finish"; the shard's statistics.

    A "finish" with a "path" in its body has the shard written to that folder; the statistics then hold the "file".
    beacon: is told of each message and of each `interval_s` seconds without one, so idle is not stuck.
    Raises Stopped on "stop", and SilenceError after `timeout_s` seconds in which nobody asked for anything.
    """
    beacon, handled, silent_s = beacon or Beacon(), 0, 0.0
    while True:
        beacon.progress = f"{handled} messages" + (f", then idle for {silent_s:g} s" if silent_s else "")
        try:
            message = channel.receive(interval_s)
        except SilenceError as error:
            silent_s += interval_s
            if silent_s >= timeout_s:
                raise silence(channel.name, silent_s) from error
            continue
        handled, silent_s = handled + 1, 0.0
        match message.kind:
            case "finish" if message.sender == LAUNCHER:
                return _finished(shard, message.body.get("path"), beacon)
            case "stop":
                raise Stopped("E601", f"{channel.name} was told to stop: {message.body.get('why', 'the run ended')}")
        for peer, reply in shard.handle(message):
            channel.send(peer, reply)


def _finished(shard: Shard, path: str | None, beacon: Beacon) -> dict[str, Any]:
    statistics = shard.statistics()
    if path is None:
        return statistics
    beacon.progress = None  # a slow disk is not being stuck
    file = write_shard(Path(path), shard.index, shard.holdings(), shard.rule)
    return {**statistics, "file": msgspec.to_builtins(file)}
