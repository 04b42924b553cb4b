"""`Commons`: which workers have asked for memory of a machine's parameters, and that memory once there are values."""

from collections import defaultdict
from collections.abc import Iterable

from ...runtime.channel.message import Message
from .replies import Replies
from ..slices.slice_state import Record
from .slice_server import Served
from .shared_parameters import Sharing


class Commons:
    """Of one shard with these slices, when so many replicas share their parameters."""

    def __init__(self, served: Iterable[Served], replicas: int) -> None:
        self._replicas = replicas
        self._records: dict[int, Record] = {}
        self._parts: dict[int, list[Served]] = defaultdict(list)  # by machine, in their order
        for part in served:
            self._parts[part.piece.machine].append(part)
            self._records[part.piece.number] = part.record
        self._sharings: dict[int, Sharing] = {}  # by machine
        self._asking: dict[int, list[Message]] = defaultdict(list)  # who waits for those

    def share(self, part: Served, message: Message) -> Replies:
        """A worker asks for the memory of the machine that a slice is of."""
        part.number(message, "replica")
        self._asking[part.piece.machine].append(message)
        return self.due(part)

    def due(self, part: Served) -> Replies:
        """Answers to those that wait for the memory of the machine that a slice is of."""
        machine = part.piece.machine
        holdings = [other.holding for other in self._parts[machine] if other.holding is not None]
        if machine not in self._asking or len(holdings) < len(self._parts[machine]):
            return []
        if machine not in self._sharings:
            self._sharings[machine] = Sharing(holdings, self._replicas)
        replies = []
        for message in self._asking.pop(machine):
            try:
                replies.append(self._sharings[machine].answer(message.sender, message.body["replica"], message.edge))
            except ValueError as error:
                raise part.broken(message, str(error)) from error
        return replies

    def count(self) -> None:
        """Take note of the updates that workers have made themselves."""
        for sharing in self._sharings.values():
            sharing.count(self._records)

    def __repr__(self) -> str:
        return f"Commons(shared={sorted(self._sharings)}, awaited={sorted(self._asking)})"
