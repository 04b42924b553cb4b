"""`Shard`: one parameter server. `handle` is its whole protocol, without I/O or clock (shard_loop.py joins it to both).

A slice is named by the `edge` of a message, its number in the layout. The messages, and the answers:
  put     {version, state} values [n], states  "held"; they count where the slice has none of that version or later
  fetch   {at_least, slowest, replica}        "values" {version, applied} values [n], once the slice has that version
                                              and every replica has pushed so many steps
          {..., since}                        the same, but with what changed since that version alone: with
                                              {unchanged} no tensors, with {width} rows int32 [r], values [r, width]
  push    {base, number, replica} gradient [n]  "pushed" {version, number}, after the rule was applied
          {..., fetch: {..., step}} gradient  the same, then "values" as for that fetch, before any other's push
          {..., packed} tensors               the same; the gradient as a compression has packed it (packing.py)
          {..., width} rows [r], [r, width]   the same; the gradient of these rows of a table (rows.py)
  join    {replica, asks}                     "joined" {step}, if it asks for the step that it may take, which is the
                                              message's or a later one; else it takes the message's
  leave   {replica}                           nothing; the replica takes no more steps
  note    {key, value}                        nothing; the first note of a key is kept (board.py)
  ask     {key}                               "noted" {key, value}, once there is one
  share   {replica}                           "shared" {where, version}, once all slices of the machine have values:
                                              memory with them, which workers change themselves then (sharing.py)
The launcher sends "checkpoint" {checkpoint}, the number of one that is to be made when it is due, and is told "saved",
or "late" where it was due before (keeper.py).
base: version of the values that the gradient was computed on, for accrued gradients the last of them. number: 1, 2, 3,
... for each client and slice; one that came before is acknowledged and not applied. applied: the number of the asking
client's last push that the values contain.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor

from ...errors import NetworkError
from ...runtime.launcher.assignment import LAUNCHER
from ...runtime.channel.message import Message
from .replies import Replies, broken
from .commons import Commons
from .durability import Disk
from ..slices.slice_state import Holding, together
from ..checkpoint.journal import Keeper
from ..slices.slicing import Slice, spans
from ..methods.method import Serving
from .slice_server import Served


class Shard:
    """Holds slices of the parameters and applies a rule to them."""

    def __init__(
        self,
        index: int,
        slices: Iterable[Slice],
        serving: Serving,
        *,
        keeper: Keeper | None = None,
        held: Iterable[Holding] = (),
        clocks: Mapping[int, Mapping[int, int]] | None = None,
        copy: Callable[[Tensor], Tensor] = torch.clone,
    ) -> None:
        """keeper: writes it to the disk; without one, nothing survives it, and it counts as written at once.

        held, clocks: slices and the steps of replicas as a file has them; such slices need no "put". copy: makes copies
        of values where they are sent from, as `Channel.copy`.
        """
        self.index = index
        self.serving = serving
        self.rule = serving.rule
        pieces, steps = list(slices), clocks or {}
        holdings = {holding.slice.number: holding for holding in held}
        self._disk = Disk(keeper, (piece.number for piece in pieces))
        self._served = {
            n: Served(index, piece, serving, self._disk, holding=holdings.get(n), steps=steps.get(n), copy=copy)
            for n, piece in ((piece.number, piece) for piece in pieces)
        }
        self._commons = Commons(self._served.values(), serving.replicas)

    def handle(self, message: Message) -> Replies:
        """Take in one message; the answers to it and to fetches that waited for it."""
        if message.kind == "checkpoint" and message.sender == LAUNCHER:
            self._disk.ask(int(message.body["checkpoint"]))
            return []
        served = self._served.get(message.edge)
        if served is None:
            facts = f"names slice {message.edge}; this shard has {spans(self._served)}"
            raise broken(self.index, None, message, facts)
        served.record.bytes_in += message.bytes
        self._disk.tells(message.sender)
        match message.kind:
            case "put":
                return [*served.put(message), *self._commons.due(served)]
            case "fetch":
                self._commons.count()
                return served.fetch(message)
            case "push":
                return served.push(message)
            case "join":
                return served.join(message)
            case "leave":
                return [*served.leave(message), *self._left()]
            case "note" | "ask":
                return self._note(served, message)
            case "share":
                return self._commons.share(served, message)
        raise served.broken(message, "is of an unknown kind")

    def turn(self) -> Replies:
        """Go on with what is being written to the disk; whom to tell what came of it. After each message, and while
        nothing comes."""
        held = [served.holding for served in self._served.values() if served.holding is not None]
        if len(held) < len(self._served):
            return []
        self._commons.count()
        safe = self._disk.safe
        clocks = {number: served.clocks.steps for number, served in self._served.items()}
        replies = self._told(self._disk.turn(held, self.rule, clocks))
        if self._disk.safe and not safe:
            replies += [reply for _, served in sorted(self._served.items()) for reply in served.due()]
        return replies

    def close(self) -> Replies:
        """Wait for what is being written; whom to tell what came of it."""
        return self._told(self._disk.close())

    @property
    def busy(self) -> bool:
        """Whether something is being written, so that `turn` should be called soon again."""
        return self._disk.busy

    def holdings(self) -> list[Holding]:
        """Every slice with its values, for a checkpoint; NetworkError where one was never put."""
        self._commons.count()
        held = [(number, served.holding) for number, served in sorted(self._served.items())]
        missing = [number for number, holding in held if holding is None]
        if missing:
            machines = sorted({self._served[number].piece.machine for number in missing})
            raise NetworkError("E551", f"shard-{self.index} never got initial values of machines {machines}")
        return [holding for _, holding in held if holding is not None]

    def statistics(self) -> dict[str, Any]:
        """Plain data: the shard's number, its rule, and what it holds of every machine with what happened to that.

        version: the smallest of a machine's slices. Counts are sums over them, so a push counts once for each.
        """
        self._commons.count()
        machines = sorted({served.piece.machine for served in self._served.values()})
        slices = [self._of_machine(machine) for machine in machines]
        return {"shard": self.index, "rule": msgspec.to_builtins(self.rule), "slices": slices}

    def __repr__(self) -> str:
        versions = {piece["machine"]: piece["version"] for piece in self.statistics()["slices"]}
        waiting = sum(served.waiting for served in self._served.values())
        return f"Shard({self.index}, {self.rule}, versions={versions}, deferred={waiting})"

    def _of_machine(self, machine: int) -> dict[str, Any]:
        parts = [served for served in self._served.values() if served.piece.machine == machine]
        versions = [served.version for served in parts]
        held = [version for version in versions if version is not None]
        return {
            "shard": self.index,
            "machine": machine,
            "start": min(served.piece.start for served in parts),
            "stop": max(served.piece.stop for served in parts),
            "slices": len(parts),
            "version": min(held) if len(held) == len(versions) else None,
            "clock_gap": max(served.clocks.gap for served in parts),
            **together(served.record for served in parts).statistics(),
        }

    def _note(self, served: Served, message: Message) -> Replies:
        board = served.board
        try:
            return board.note(message) if message.kind == "note" else board.ask(message)
        except ValueError as error:
            raise served.broken(message, str(error)) from error

    def _told(self, told: Replies) -> Replies:
        """What came of writing, and answers to those who have waited for it."""
        return [*told, *self._left()] if told else told

    def _left(self) -> Replies:
        return [reply for served in self._served.values() for reply in served.left()]
