"""`Chunks`: hands out the portions of a batch, some at a time, to replicas of whatever speed.

Dean et al., "Large Scale Distributed Deep Networks", 2012, section 4.2: portions are much smaller than a replica's
share, so that the fast do more of them; one replica gets consecutive ones; and when none are left, those that are late
are given to others as well, and whoever is first counts.
"""

import heapq
from collections import deque

import msgspec

from .tree_sum import leaves

COPIES = 2  # of a chunk that is late, under way at a time, at most


class Chunk(msgspec.Struct, frozen=True):
    """Node (level, index) of the sum of an evaluation: its portions are leaves from `first` on, `count` in all.

    place: of the `Evaluate` in batch `number`.
    """

    epoch: int
    number: int
    place: int
    level: int
    index: int
    first: int
    count: int

    @property
    def portions(self) -> range:
        """Their numbers."""
        those = leaves(self.level, self.index, self.count)
        return range(self.first + those.start, self.first + those.stop)


class Chunks:
    """Chunks 0 to `count` - 1. Replicas go by name. copies: of one that may be under way at a time.

    No call looks at all chunks or at all replicas, but for `lost`.
    """

    def __init__(self, count: int, *, copies: int = COPIES) -> None:
        self.count = count
        self.backups = 0  # chunks that were given out once more
        self.taken: dict[str, int] = {}  # how many each replica was first with
        self._ranges: dict[str, tuple[int, int]] = {"": (0, count)}
        self._longest = [(-count, "")]  # a heap; some ranges have become shorter since
        self._again = deque[int]()  # that were lost
        self._under_way: dict[int, list[str]] = {}
        self._late: list[dict[int, None]] = [{} for _ in range(copies + 1)]  # those, by how many are at them
        self._done: dict[int, str] = {}

    @property
    def complete(self) -> bool:
        """Whether all are done."""
        return len(self._done) == self.count

    def next(self, who: str) -> int | None:
        """A chunk for a replica; None where there is nothing that it could do."""
        found = self._fresh(who)
        if found is None:
            found = self._backup(who)
            if found is None:
                return None
            self.backups += 1
        self._are_at(found, [*self._under_way.get(found, ()), who])
        return found

    def done(self, who: str, chunk: int) -> bool:
        """A replica has done one; whether it was the first."""
        if chunk in self._done or chunk not in range(self.count):
            return False
        self._are_at(chunk, [])
        self._done[chunk] = who
        self.taken[who] = self.taken.get(who, 0) + 1
        return True

    def lost(self, who: str) -> None:
        """A replica is gone, and what it has sent may be, too."""
        for chunk in [chunk for chunk, by in self._under_way.items() if who in by]:
            others = [other for other in self._under_way[chunk] if other != who]
            self._are_at(chunk, others)
            self._again += [] if others else [chunk]
        for chunk in [chunk for chunk, by in self._done.items() if by == who]:
            del self._done[chunk]
            self._again.append(chunk)
        self.taken.pop(who, None)

    def _fresh(self, who: str) -> int | None:
        """One that nobody does: the next after its last, or half of what the one with most left would do."""
        while self._again:
            chunk = self._again.popleft()
            if chunk not in self._done and chunk not in self._under_way:
                return chunk
        start, stop = self._ranges.get(who, (0, 0))
        if start == stop:
            other = self._most_left()
            if other is None:
                return None
            first, stop = self._ranges[other]
            start = (first + stop) // 2 if other else first
            self._ranges[other] = (first, start)
            heapq.heappush(self._longest, (first - start, other))
            heapq.heappush(self._longest, (start + 1 - stop, who))
        self._ranges[who] = (start + 1, stop)
        return start

    def _most_left(self) -> str | None:
        """Whose range is longest, which leaves the heap; None where all are empty."""
        while self._longest:
            size, name = heapq.heappop(self._longest)
            start, stop = self._ranges[name]
            if start - stop == size < 0:
                return name
            if start < stop:
                heapq.heappush(self._longest, (start - stop, name))
        return None

    def _backup(self, who: str) -> int | None:
        """One that others are at, the fewest of all, and that was given to them first."""
        for chunks in self._late[1:-1]:
            for chunk in chunks:
                if who not in self._under_way[chunk]:
                    return chunk
        return None

    def _are_at(self, chunk: int, names: list[str]) -> None:
        """Who is at a chunk now."""
        self._late[len(self._under_way.pop(chunk, ()))].pop(chunk, None)
        if names:
            self._under_way[chunk] = names
            self._late[len(names)][chunk] = None

    def __repr__(self) -> str:
        return f"Chunks({len(self._done)} of {self.count} done, {len(self._under_way)} under way)"
