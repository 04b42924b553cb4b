"""`Shard`: one parameter server. `handle` is its whole protocol, without I/O or clock; `serve` joins it to a channel.

A slice is named by the `edge` of a message, the machine whose parameters it is part of. The messages, and the answers:
  put     values [n]                          initial values, once
  fetch   {at_least}                          "values" {version, applied} values [n], once the slice has that version
  push    {base, number} gradient [n]         "pushed" {version, number}, after the rule was applied
base: version of the values that the gradient was computed on, for accrued gradients the last of them. number: 1, 2, 3,
... for each client and slice; one that came before is acknowledged and not applied. applied: the number of the asking
client's last push that the values contain.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from ..partition.errors import NetworkError
from ..runtime.assignment import LAUNCHER
from ..runtime.beacon import Beacon
from ..runtime.channel import Channel, SilenceError, silence
from ..runtime.mailbox import Stopped
from ..runtime.message import Message
from .checkpoint import write_shard
from .holding import Holding, Record
from .layout import Slice
from .rule import Rule
from .staleness import Staleness

Replies = list[tuple[str, Message]]
DEFERRED_MOST = 4096  # fetches of a slice that wait for a later version; a client waits with one


class Shard:
    """Holds slices of the parameters and applies a rule to them."""

    def __init__(self, index: int, slices: Iterable[Slice], rule: Rule, *, held: Iterable[Holding] = ()) -> None:
        """held: slices as a checkpoint has them; those need no "put"."""
        self.index = index
        self.rule = rule
        self._slices = {piece.machine: piece for piece in slices}
        self._held = {holding.slice.machine: holding for holding in held}
        self._records = {machine: Record() for machine in self._slices}
        self._deferred: dict[int, list[tuple[str, int, int]]] = defaultdict(list)

    def handle(self, message: Message) -> Replies:
        """Take in one message; the answers to it and to fetches that waited for it."""
        machine = message.edge
        if machine not in self._slices:
            raise self._broken(message, f"names machine {machine}; this shard has slices of {sorted(self._slices)}")
        self._records[machine].bytes_in += message.bytes
        match message.kind:
            case "put":
                return self._put(machine, message)
            case "fetch":
                return self._fetch(machine, message)
            case "push":
                return self._push(machine, message)
        raise self._broken(message, "is of an unknown kind")

    def holdings(self) -> list[Holding]:
        """Every slice with its values, for a checkpoint; NetworkError where one was never put."""
        missing = sorted(self._slices.keys() - self._held.keys())
        if missing:
            raise NetworkError("E551", f"shard-{self.index} never got initial values of machines {missing}")
        return [self._held[machine] for machine in sorted(self._held)]

    def statistics(self) -> dict[str, Any]:
        """Plain data: the shard's number, its rule, and every slice with its version and what happened to it."""
        slices = [
            {**msgspec.to_builtins(piece), "version": self._version(machine), **self._records[machine].statistics()}
            for machine, piece in sorted(self._slices.items())
        ]
        return {"shard": self.index, "rule": msgspec.to_builtins(self.rule), "slices": slices}

    def __repr__(self) -> str:
        versions = {machine: self._version(machine) for machine in sorted(self._slices)}
        return (
            f"Shard({self.index}, {self.rule}, versions={versions}, deferred={sum(map(len, self._deferred.values()))})"
        )

    def _put(self, machine: int, message: Message) -> Replies:
        value = self._payload(machine, message)
        if machine in self._held:
            raise self._broken(message, f"brings initial values twice; the slice has version {self._version(machine)}")
        value = value.clone()
        self._held[machine] = Holding(self._slices[machine], value, self.rule.state(value))
        return self._due(machine)

    def _fetch(self, machine: int, message: Message) -> Replies:
        if len(self._deferred[machine]) == DEFERRED_MOST:
            raise self._broken(message, f"comes while {DEFERRED_MOST} fetches wait for pushes that were never made")
        self._deferred[machine].append((message.sender, message.step, self._number(message, "at_least")))
        return self._due(machine)

    def _push(self, machine: int, message: Message) -> Replies:
        gradient = self._payload(machine, message)
        holding = self._held.get(machine)
        if holding is None:
            raise self._broken(message, "came before the initial values")
        if gradient.dtype != holding.value.dtype:
            raise self._broken(message, f"has a {gradient.dtype} gradient for {holding.value.dtype} values")
        if self._is_new(holding, message):
            self._apply(holding, message, gradient)
        body = {"version": holding.version, "number": message.body["number"]}
        return [(message.sender, Message("pushed", edge=machine, body=body)), *self._due(machine)]

    def _is_new(self, holding: Holding, message: Message) -> bool:
        number, last = self._number(message, "number"), holding.applied.get(message.sender, 0)
        if number > last + 1:
            raise self._broken(message, f"has number {number}; expected {last + 1}, so {number - last - 1} are lost")
        if number <= last:
            self._records[holding.slice.machine].duplicates += 1
        return number > last

    def _apply(self, holding: Holding, message: Message, gradient: Tensor) -> None:
        tau = holding.version - self._number(message, "base")
        if tau < 0:
            raise self._broken(message, f"builds on version {holding.version - tau}; the slice has {holding.version}")
        holding.apply(self.rule, gradient, worker=message.sender, step=message.step)
        holding.applied[message.sender] = message.body["number"]
        record = self._records[holding.slice.machine]
        record.pushes += 1
        record.staleness.setdefault(message.sender, Staleness()).add(tau)

    def _due(self, machine: int) -> Replies:
        """Answers to the fetches whose version is reached."""
        holding = self._held.get(machine)
        if holding is None or not self._deferred[machine]:
            return []
        due = [fetch for fetch in self._deferred[machine] if fetch[2] <= holding.version]
        self._deferred[machine] = [fetch for fetch in self._deferred[machine] if fetch[2] > holding.version]
        return [(client, self._values(holding, client, step)) for client, step, _ in due]

    def _values(self, holding: Holding, client: str, step: int) -> Message:
        body = {"version": holding.version, "applied": holding.applied.get(client, 0)}
        # A clone: the channel may read it long after the next push has changed the slice.
        reply = Message("values", step=step, edge=holding.slice.machine, body=body, tensors=(holding.value.clone(),))
        record = self._records[holding.slice.machine]
        record.fetches += 1
        record.bytes_out += reply.bytes
        return reply

    def _version(self, machine: int) -> int | None:
        holding = self._held.get(machine)
        return None if holding is None else holding.version

    def _payload(self, machine: int, message: Message) -> Tensor:
        shapes, size = [list(t.shape) for t in message.tensors], self._slices[machine].size
        if shapes != [[size]]:
            raise self._broken(message, f"has tensors of shapes {shapes}; the slice is one of [{size}]")
        return message.tensors[0]

    def _number(self, message: Message, name: str) -> int:
        value = message.body.get(name)
        if not isinstance(value, int) or value < 0:
            raise self._broken(message, f"has {name} = {value!r}, which is no count")
        return value

    def _broken(self, message: Message, facts: str) -> NetworkError:
        return NetworkError(
            "E550",
            f"shard-{self.index}: message {message.kind!r} of {message.sender} for the slice of machine {message.edge} "
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
                return _finished(shard, message.body.get("path"))
            case "stop":
                raise Stopped("E601", f"{channel.name} was told to stop: {message.body.get('why', 'the run ended')}")
        for peer, reply in shard.handle(message):
            channel.send(peer, reply)


def _finished(shard: Shard, path: str | None) -> dict[str, Any]:
    statistics = shard.statistics()
    if path is None:
        return statistics
    file = write_shard(Path(path), shard.index, shard.holdings(), shard.rule)
    return {**statistics, "file": msgspec.to_builtins(file)}
