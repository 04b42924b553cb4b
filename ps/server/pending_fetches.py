"""`Fetches`: those of one slice that wait for a later version or a slower replica, and what each is answered."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from ...runtime.channel.message import Message
from .changes import Changes
from .step_clocks import Clocks
from ..slices.slice_state import Holding
from ..slices.slicing import Slice
from ..slices.sparse_rows import Rows

DEFERRED_MOST = 4096  # of a slice: more than there are clients


class Fetch(NamedTuple):
    """One that waits. since: the version that the client has, where it wants what changed alone."""

    client: str
    step: int
    replica: int
    at_least: int
    slowest: int
    since: int | None


class Fetches:
    """Of one slice. changes: what its last updates changed, which whoever makes them tells."""

    def __init__(self, piece: Slice) -> None:
        self.changes = Changes(piece.rows)
        self._piece = piece
        self._waiting: list[Fetch] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, fetch: Fetch) -> None:
        """One more, in place of one that the client may have sent before; ValueError where there are too many."""
        self._waiting = [other for other in self._waiting if other.client != fetch.client]
        if len(self._waiting) == DEFERRED_MOST:
            raise ValueError(f"comes while {DEFERRED_MOST} fetches wait for pushes that were never made")
        self._waiting.append(fetch)

    def due(self, holding: Holding, clocks: Clocks) -> Iterator[Fetch]:
        """Those that need wait no longer; they are gone from here."""
        slowest, waiting, due = clocks.slowest, list[Fetch](), list[Fetch]()
        for fetch in self._waiting:
            ready = fetch.at_least <= holding.version and (slowest is None or fetch.slowest <= slowest)
            (due if ready else waiting).append(fetch)
        self._waiting = waiting
        return iter(due)

    def answer(self, fetch: Fetch, holding: Holding) -> Message:
        """The values, or what has changed."""
        body = {"version": holding.version, "applied": holding.applied.get(fetch.client, 0)}
        fields, tensors = self._changed(holding, fetch.since)
        return Message("values", fetch.step, 0, self._piece.number, body | fields, tensors=tensors)

    def _changed(self, holding: Holding, since: int | None) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
        """What changed since a version, None for all: fields of the body, and tensors."""
        numbers = None if since is None else self.changes.since(since, holding.version)
        if numbers is not None and not numbers.numel():
            return {"unchanged": True}, ()
        if numbers is not None:
            rows = Rows(numbers, holding.value.view(-1, self._piece.width)[numbers])
            if sum(tensor.nbytes for tensor in rows.tensors) < holding.value.nbytes:
                return rows.fields, rows.tensors
        return {}, (holding.shown(),)

    def __repr__(self) -> str:
        return f"Fetches({len(self)} waiting, {self.changes})"
