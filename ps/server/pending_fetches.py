"""`PendingFetches`: the fetches of one slice that wait for a later version or a slower replica, and their replies."""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...runtime.channel.message import Message
from ..slices.slice_state import SliceState
from ..slices.slicing import ParameterSlice
from ..slices.sparse_rows import SparseRows
from .step_clocks import StepClocks

MAX_PENDING_FETCHES = 4096  # of a slice: more than there are clients
MAX_LOGGED_UPDATES = 4096


class PendingFetch(NamedTuple):
    """A fetch that waits.

    step: the number of the fetch at its client. min_version: the version that the slice must have. min_step: the steps
    that every replica must have pushed. since: the version that the client has, if it wants only what has changed.
    """

    client: str
    step: int
    replica: int
    min_version: int
    min_step: int
    since: int | None


class PendingFetches:
    """The waiting fetches of one slice.

    change_log: which rows its last updates changed; whoever updates the slice adds to it.
    """

    def __init__(self, piece: ParameterSlice) -> None:
        self.change_log = ChangeLog(piece.rows)
        self._piece = piece
        self._waiting: list[PendingFetch] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, fetch: PendingFetch) -> None:
        """Add a fetch, in place of an earlier one of the same client. ValueError if there are too many."""
        self._waiting = [other for other in self._waiting if other.client != fetch.client]
        if len(self._waiting) == MAX_PENDING_FETCHES:
            raise ValueError(f"comes while {MAX_PENDING_FETCHES} fetches wait for pushes that were never made")
        self._waiting.append(fetch)

    def take_ready(self, slice_state: SliceState, clocks: StepClocks) -> Iterator[PendingFetch]:
        """Remove and return the fetches that need wait no longer."""
        slowest, waiting, ready = clocks.slowest, list[PendingFetch](), list[PendingFetch]()
        for fetch in self._waiting:
            is_ready = fetch.min_version <= slice_state.version and (slowest is None or fetch.min_step <= slowest)
            (ready if is_ready else waiting).append(fetch)
        self._waiting = waiting
        return iter(ready)

    def make_reply(self, fetch: PendingFetch, slice_state: SliceState, *, durable: int) -> Message:
        """Make the reply with the values, or with what has changed. durable: the client's last durable push."""
        applied = slice_state.applied.get(fetch.client, 0)
        body = {"version": slice_state.version, "applied": applied, "durable": durable}
        fields, tensors = self._changed_values(slice_state, fetch.since)
        return Message("values", fetch.step, 0, self._piece.number, body | fields, tensors=tensors)

    def _changed_values(self, slice_state: SliceState, since: int | None) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
        """Return fields of the body, and tensors: what changed since a version, or all values if that is None."""
        numbers = None if since is None else self.change_log.rows_since(since, slice_state.version)
        if numbers is not None and not numbers.numel():
            return {"unchanged": True}, ()
        if numbers is not None:
            rows = SparseRows(numbers, slice_state.value.view(-1, self._piece.width)[numbers])
            if sum(tensor.nbytes for tensor in rows.tensors) < slice_state.value.nbytes:
                return rows.body_fields, rows.tensors
        return {}, (slice_state.lend_values(),)

    def __repr__(self) -> str:
        return f"PendingFetches({len(self)} waiting, {self.change_log})"


class ChangeLog:
    """Which rows of a slice each of its last updates changed.

    It remembers as many updates as change `rows` rows in all, so that it never costs more than the slice. rows: 0 for
    a slice that lies in no sparse table, of which every update changes all.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._log: deque[tuple[int, Tensor]] = deque()  # version, and the rows that the update to it changed
        self._count = 0  # rows in the log
        self._from = self._to = 0  # all changes between these versions are known

    def add(self, version: int, rows: Tensor | None) -> None:
        """Record that the update to this version changed these rows (int64), None for all."""
        if rows is None or version != self._to + 1:
            self._log.clear()
            self._count, self._from, self._to = 0, version, version
            return
        self._log.append((version, rows))
        self._count += rows.numel()
        self._to = version
        while self._count > self._rows or len(self._log) > MAX_LOGGED_UPDATES:
            self._from, dropped = self._log.popleft()
            self._count -= dropped.numel()

    def rows_since(self, version: int, now: int) -> Tensor | None:
        """Return the rows (int64, ascending) that changed from `version` to `now`; None if it may be all of them."""
        if version == now:
            return torch.zeros(0, dtype=torch.int64)
        if now != self._to or not self._from <= version < now:
            return None
        changed = [rows for update_version, rows in self._log if update_version > version]
        return torch.unique(torch.cat(changed)) if changed else None

    def __repr__(self) -> str:
        return f"ChangeLog({self._from} to {self._to}, {self._count} of {self._rows} rows)"
