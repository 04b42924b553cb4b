"""`Fences`: what the slices have of the pushes of workers that are lost, after which they get no more of them.

A worker that is lost may have pushed a batch to some slices and not to others, and what it pushed may still be on its
way, or be lost with a shard. So every shard is told to take nothing more of it, and replies once all that it took is
durable. A shard that is lost before it has replied has nothing to say; the one that takes its place is told again. With
all replies it is certain which slices have which batches, for good.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...ps.slices.slicing import ParameterSlice
from ...runtime.channel.message import Message
from .batch_leases import ReplicaStart


@dataclass
class _Fence:
    """That of one lost start. machines: by name of a worker. informed: names of shards. steps: by slice, as replied."""

    start: ReplicaStart
    machines: Mapping[str, int]
    informed: set[str] = field(default_factory=set)
    steps: dict[int, int] = field(default_factory=dict)


class Fences:
    """The fences of one run, between the slices and the starts of replicas that were lost."""

    def __init__(self, slices: Iterable[ParameterSlice]) -> None:
        self._slices = {piece.number: piece for piece in slices}
        self._fences: list[_Fence] = []

    def add(self, start: ReplicaStart, machines: Mapping[str, int]) -> None:
        """Fence a start of a replica off. machines: by name of its workers, their machines."""
        self._fences.append(_Fence(start, dict(machines)))

    @property
    def is_empty(self) -> bool:
        """Whether no start is fenced off, or is about to be."""
        return not self._fences

    def take_messages(self, shards: Mapping[int, str]) -> list[tuple[str, Message]]:
        """Return what is to be sent, to names of shards. shards: the names of those that serve, by index."""
        messages = []
        for fence in self._fences:
            for name in [name for name in shards.values() if name not in fence.informed]:
                fence.informed.add(name)
                messages += [(name, Message("fence", body={"client": client})) for client in fence.machines]
        return messages

    def handle(self, message: Message) -> None:
        """Take the reply "fenced" of a shard into account."""
        client = message.body["client"]
        for fence in self._fences:
            for text, steps in message.body["steps"].items() if client in fence.machines else ():
                if self._slices[int(text)].machine == fence.machines[client]:
                    fence.steps[int(text)] = int(steps)

    def take_complete(self) -> list[tuple[ReplicaStart, dict[int, int]]]:
        """Remove and return the starts for which all have replied, with the steps that each slice has of them."""
        complete = [fence for fence in self._fences if len(fence.steps) == len(self._slices)]
        self._fences = [fence for fence in self._fences if fence not in complete]
        return [(fence.start, fence.steps) for fence in complete]

    def __repr__(self) -> str:
        waits = {fence.start: len(self._slices) - len(fence.steps) for fence in self._fences}
        return f"Fences({len(self._slices)} slices, unknown of {waits})"
