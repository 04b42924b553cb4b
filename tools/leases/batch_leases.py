"""`BatchLeases`: which replica computes which batches - ranges of global batch numbers, leased in order, each once.

Guided self-scheduling (Polychronopoulos and Kuck, IEEE Transactions on Computers, 1987): large ranges first, single
batches at the end, so that all replicas end together though some are slower. A pure core: no clock, no messages.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from ...errors import NetworkError

MAX_LEASE_S = 0.25  # of work in a lease
DIVISOR = 8  # a lease is at most this fraction of a replica's even share of the batches that are left

ReplicaStart = tuple[int, int]  # a replica and its incarnation


class Lease(msgspec.Struct, frozen=True):
    """Global batches `first` to `first + count - 1`; none where count is 0.

    skips: numbers of slices that have the gradients of these batches already, from a replica that was lost.
    """

    first: int
    count: int
    skips: tuple[int, ...] = ()

    def part(self, start: int, stop: int) -> "Lease":
        """Return the batches from the one at `start` to that before `stop`, counted from the first one."""
        return Lease(self.first + start, stop - start, self.skips)


NO_BATCHES = Lease(0, 0)


@dataclass
class _Holder:
    """One start of a replica.

    answers: to its requests, in order. leases: what they are worth, in the same order. done: batches completed of that.
    """

    answers: list[Lease] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    held: int = 0
    done: int = 0
    retired: bool = False

    def list_unfinished(self, applied: Mapping[int, int]) -> list[Lease]:
        """Return what was leased to it and is not complete: batches that not all slices have.

        applied: by slice, how many of its batches the slice has, in their order.
        """
        rest, begin = [], 0
        for lease in self.leases:
            marks = {min(lease.count, max(0, count - begin)) for count in (self.done, *applied.values())}
            cuts = sorted({0, lease.count} | marks)
            for start, stop in pairwise(cuts):
                have = {number for number, count in applied.items() if count >= begin + stop} | set(lease.skips)
                is_complete = begin + stop <= self.done or (applied and have >= applied.keys())
                if not is_complete:
                    rest.append(replace(lease.part(start, stop), skips=tuple(sorted(have))))
            begin += lease.count
        return rest


class BatchLeases:
    """Leases batches `first` to `batches - 1`.

    A start of a replica makes numbered requests (0, 1, ...); all machines of a cut replica make the same ones, and each
    request has one answer, however often it is made.

    Attributes:
        completed: batches that each replica computed.
        recomputed: batches that each replica had when it was lost, and that not all slices had of it.
    """

    def __init__(self, batches: int, *, first: int = 0) -> None:
        self._free = [Lease(first, batches - first)] if batches > first else []  # in order, not adjacent
        self._holders: dict[ReplicaStart, _Holder] = {}
        # So that an answer costs the same however many hold leases: sums over _free, over what holders have still to
        # complete, and the holders that may ask for more.
        self._free_batches = max(0, batches - first)
        self._leased_to = first  # the end of the last lease in the order of batches
        self._unfinished = 0
        self._asking = set[ReplicaStart]()
        self.batches = batches
        self.completed: dict[int, int] = {}
        self.recomputed: dict[int, int] = {}

    @property
    def free_batches(self) -> int:
        """How many batches are leased to nobody and not computed."""
        return self._free_batches

    @property
    def begun(self) -> int:
        """How many batches, from the first one of all on, are leased or complete."""
        return self.batches - self._free_batches

    @property
    def unfinished(self) -> int:
        """How many batches are leased and not known to be computed."""
        return self._unfinished

    @property
    def all_done(self) -> bool:
        """Whether all batches are computed."""
        return not self._free and not self._unfinished

    def lease(
        self, start: ReplicaStart, number: int, *, pace_s: float | None = None, idle: bool = False
    ) -> Lease | None:
        """Answer a request: what `start` computes next, NO_BATCHES if nothing is free, None if the answer must wait.

        Args:
            number: of the request.
            pace_s: seconds per batch, as far as the replica knows.
            idle: the replica has computed all of its leases. NO_BATCHES tells it to end, and the answer waits until
                batches are free or all are computed.

        Raises:
            NetworkError: E580, if a request was skipped.
        """
        holder = self._hold(start)
        answered = len(holder.answers)
        if number < answered:
            return holder.answers[number]
        if number > answered or number < 0:
            raise NetworkError(
                "E580",
                f"replica {start[0]} makes its request {number} for batches; {answered} were answered so far",
                fix="check that all roles belong to this run and are of one version of cutset",
            )
        lease = NO_BATCHES if holder.retired else self._take(start, self._choose_size(pace_s))
        if idle and lease == NO_BATCHES and not self.all_done and not holder.retired:
            return None
        if idle and lease == NO_BATCHES:
            self._asking.discard(start)  # it ends
        holder.answers.append(lease)
        holder.leases.append(lease)
        holder.held += lease.count
        self._unfinished += lease.count
        return lease

    def complete(self, start: ReplicaStart, count: int) -> None:
        """Note that a start has computed `count` of its batches, so that they are never leased again."""
        holder = self._hold(start)
        count = min(count, holder.held)
        if count > holder.done:
            self._unfinished -= count - holder.done
            self.completed[start[0]] = self.completed.get(start[0], 0) + count - holder.done
            holder.done = count

    def end_early(self, multiple_of: int) -> None:
        """Lease no batches but those before some that are leased already, up to a multiple of a number."""
        end = min(self.batches, -(-self._leased_to // multiple_of) * multiple_of)
        self._free = [Lease(free.first, min(free.count, end - free.first)) for free in self._free if free.first < end]
        self._free_batches = sum(free.count for free in self._free)
        self.batches = end

    def retire(self, start: ReplicaStart) -> None:
        """Lease nothing more to this start."""
        self._hold(start).retired = True
        self._asking.discard(start)

    def has_unfinished(self, start: ReplicaStart) -> bool:
        """Return whether some of what a start was leased is not known to be complete."""
        holder = self._holders.get(start)
        return holder is not None and holder.done < holder.held

    def reclaim(self, start: ReplicaStart, applied: Mapping[int, int] = MappingProxyType({})) -> int:
        """Take back what a lost start has not computed, to lease it again; return the number of batches.

        applied: by slice, how many of its batches the slice has, in the order in which they were leased, and gets no
        more of. A batch that some slices have is leased for the others alone.
        """
        holder = self._holders.pop(start, _Holder())
        unfinished = holder.list_unfinished(applied)
        self._asking.discard(start)
        self._free = _merge_adjacent([*self._free, *unfinished])
        count = sum(lease.count for lease in unfinished)
        self._free_batches += count
        self._unfinished -= holder.held - holder.done
        complete = holder.held - holder.done - count
        if complete:
            self.completed[start[0]] = self.completed.get(start[0], 0) + complete
        if count:
            self.recomputed[start[0]] = self.recomputed.get(start[0], 0) + count
        return count

    def _hold(self, start: ReplicaStart) -> _Holder:
        """Return what a start holds; from its first request on it counts among those that may ask for more."""
        if start not in self._holders:
            self._holders[start] = _Holder()
            self._asking.add(start)
        return self._holders[start]

    def _choose_size(self, pace_s: float | None) -> int:
        """Return the number of batches of the next lease.

        Guided self-scheduling leases ceil(R / P) of R remaining batches to one of P replicas. Here a lease is an eighth
        of that, and lasts no longer than MAX_LEASE_S, so that little is lost with a replica.
        """
        even = self.free_batches // (DIVISOR * max(1, len(self._asking)))
        in_time = 1 if pace_s is None else even if pace_s * even <= MAX_LEASE_S else int(MAX_LEASE_S / pace_s)
        return max(1, min(even, in_time))

    def _take(self, start: ReplicaStart, size: int) -> Lease:
        """Remove and return the free batches that a start computes next, at most `size`."""
        if not self._free:
            return NO_BATCHES
        lease = self._free.pop(0)
        if lease.count > size:
            self._free.insert(0, lease.part(size, lease.count))
        taken = lease.part(0, min(size, lease.count))
        self._free_batches -= taken.count
        self._leased_to = max(self._leased_to, taken.first + taken.count)
        return taken

    def __repr__(self) -> str:
        holders = {start: f"{holder.done} of {holder.held}" for start, holder in self._holders.items()}
        return f"BatchLeases({self.free_batches} of {self.batches} free, done={holders})"


def _merge_adjacent(leases: list[Lease]) -> list[Lease]:
    """Return leases in order, with adjacent ones merged."""
    merged: list[Lease] = []
    for lease in sorted(leases, key=lambda one: one.first):
        last = merged[-1] if merged else NO_BATCHES
        if merged and last.first + last.count == lease.first and last.skips == lease.skips:
            merged[-1] = replace(last, count=last.count + lease.count)
        else:
            merged.append(lease)
    return merged
