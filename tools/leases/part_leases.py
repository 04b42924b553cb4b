"""`PartLeases`: leases of a stream, whose parts end where a reader finds the end.

A batch has the number of its track, a part in one epoch, and of its place there. A replica keeps its parts while they
last; then it gets the next that nobody reads. As one process reads a part, it has two in turn, as long as one more is
left for every replica. Where there are fewer parts than replicas, several read one part, each its own batches. What is
left of parts makes batches in a track of its own, which come first.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from ..samples.part_samples import locate_batch, number_batch
from .batch_leases import NO_BATCHES, BatchLeases, Lease, ReplicaStart

OPEN = 1 << 31  # batches of a part whose end nobody has found; more than any has, and fewer than its numbers
IN_TURN = 2  # parts that a replica reads at a time
RESTS = 1 << 30  # the track of the batches made of what is left of parts


class PartLeases(BatchLeases):
    """Leases the batches of some epochs of so many parts.

    remaining: by track, the batches that are left where a run resumes; of other tracks all are.
    """

    def __init__(self, parts: int, epochs: int, remaining: Mapping[int, Iterable[tuple[int, int]]]) -> None:
        super().__init__(0)
        self.parts = parts
        self._ends: dict[int, int] = {}  # by track, how many batches it has
        self._readers: dict[int, ReplicaStart] = {}  # by track, whose it is; what was leased last comes last
        self._rests = 0
        self._is_closed = False
        for track in range(parts * epochs):
            for first, count in remaining.get(track, [(0, OPEN)]):
                self._free.append(Lease(number_batch(track, first), min(count, OPEN - first)))
        self._free_batches = sum(lease.count for lease in self._free)

    @property
    def begun(self) -> int:
        """How many batches were leased so far, and not taken back."""
        return sum(self.completed.values()) + self._unfinished

    @property
    def all_done(self) -> bool:
        """Whether all batches are computed, or all that were leased where there are no more."""
        return (self._is_closed or not self._free) and not self._unfinished

    def end_early(self, multiple_of: int) -> None:
        """Lease no more batches. What is left of the stream stays, for a run that resumes."""
        self._is_closed = True

    def end(self, track: int, batches: int) -> bool:
        """Note that a track has so many batches; return whether that is new. What was leased beyond does not count."""
        if track in self._ends:
            return False
        self._ends[track] = batches
        self._readers.pop(track, None)
        begin, stop = (bisect_left(self._free, number_batch(one, 0), key=_get_first) for one in (track, track + 1))
        kept = [clipped for lease in self._free[begin:stop] if (clipped := self._clip(lease)).count]
        self._free_batches -= sum(lease.count for lease in self._free[begin:stop])
        self._free_batches += sum(lease.count for lease in kept)
        self._free[begin:stop] = kept
        for holder in self._holders.values():
            holder.leases = [self._clip(lease) for lease in holder.leases]
            held = sum(lease.count for lease in holder.leases)
            self._unfinished -= holder.held - held
            holder.held = held
        self.batches += batches
        return True

    def add_rest(self) -> int:
        """Add a batch made of what is left of parts; return its number."""
        number = number_batch(RESTS, self._rests)
        self._rests, self.batches = self._rests + 1, self.batches + 1
        self._free.append(Lease(number, 1))
        self._free_batches += 1
        return number

    def retire(self, start: ReplicaStart) -> None:
        """Lease nothing more to this start; its part is free."""
        super().retire(start)
        self._readers = {track: reader for track, reader in self._readers.items() if reader != start}

    def list_remaining(self) -> dict[int, list[tuple[int, int]]]:
        """Return by track the batches that are not known to be complete, first and count: none of a track that is.

        Tracks that nobody has begun are left out.
        """
        unfinished = [lease for holder in self._holders.values() for lease in holder.list_unfinished({})]
        remaining: dict[int, list[tuple[int, int]]] = {track: [] for track in self._ends}
        for lease in sorted([*self._free, *unfinished], key=lambda one: one.first):
            track, first = locate_batch(lease.first)
            remaining.setdefault(track, []).append((first, lease.count))
        return {track: spans for track, spans in remaining.items() if spans != [(0, OPEN)]}

    def open_end(self, track: int) -> tuple[int, int]:
        """Return the batches, none of them real, that make a run that resumes look for the end of a track again."""
        return self._ends[track], OPEN - self._ends[track]

    def _take(self, start: ReplicaStart, size: int) -> Lease:
        place = None if self._is_closed else self._find(start)
        if place is None:
            return NO_BATCHES
        lease = self._free.pop(place)
        if locate_batch(lease.first)[0] == RESTS:
            size = 1  # its samples travel with it
        elif Counter(self._readers.values())[start] > 1:
            size = -(-size // IN_TURN)  # a lease of each is what one would be, so that both are read at a time
        if lease.count > size:
            self._free.insert(place, lease.part(size, lease.count))
        taken = lease.part(0, min(size, lease.count))
        self._free_batches -= taken.count
        track = locate_batch(taken.first)[0]
        if track != RESTS:
            self._readers[track] = self._readers.pop(track, start)
        return taken

    def _find(self, start: ReplicaStart) -> int | None:
        """Return the place, among what is free, of what a start gets next; None where nothing is for it."""
        if not self._free or locate_batch(self._free[-1].first)[0] == RESTS:
            return len(self._free) - 1 if self._free else None
        own = [track for track, reader in self._readers.items() if reader == start]
        places = {track: place for track in own if (place := self._locate(track)) is not None}
        if len(places) < IN_TURN:
            unread = self._list_unread(len(self._asking) + 1)
            parts = {track % self.parts for track in places}  # a replica reads one epoch of a part at a time
            others = (place for track, place in unread.items() if track % self.parts not in parts)
            if (place := next(others, None)) is not None and (not places or len(unread) > len(self._asking)):
                return place
        return next(iter(places.values()), 0 if self.parts < len(self._asking) else None)

    def _list_unread(self, most: int) -> dict[int, int]:
        """Return the first tracks with free batches that nobody reads, and the places of these."""
        unread = dict[int, int]()
        for place, lease in enumerate(self._free):
            if len(unread) == most:
                break
            track = locate_batch(lease.first)[0]
            if track not in self._readers:
                unread.setdefault(track, place)  # what a lost replica had is in several pieces
        return unread

    def _locate(self, track: int) -> int | None:
        """Return the place of the first free batches of a track."""
        place = bisect_left(self._free, number_batch(track, 0), key=_get_first)
        is_free = place < len(self._free) and locate_batch(self._free[place].first)[0] == track
        return place if is_free else None

    def _clip(self, lease: Lease) -> Lease:
        """Return a lease without what lies beyond the end of its part."""
        track, first = locate_batch(lease.first)
        end = self._ends.get(track, OPEN)
        return lease if first + lease.count <= end else replace(lease, count=max(0, end - first))

    def __repr__(self) -> str:
        return f"PartLeases({self.parts} parts, {len(self._ends)} ended, {self.begun} batches begun)"


def _get_first(lease: Lease) -> int:
    return lease.first
