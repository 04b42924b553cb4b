"""`Chunks`: hands out the portions of a batch, some at a time, to replicas of whatever speed.

Dean et al., "Large Scale Distributed Deep Networks", 2012, section 4.2: portions are much smaller than a replica's
share, so that the fast do more of them; one replica gets consecutive ones; and when none are left, those that are late
are given to others as well, and whoever is first counts.
"""

from collections import deque

import msgspec

from .portion_sums import leaves

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
    """Chunks 0 to `count` - 1. Replicas go by name. copies: of one that may be under way at a time."""

    def __init__(self, count: int, *, copies: int = COPIES) -> None:
        self.count = count
        self._copies = copies
        self.backups = 0  # chunks that were given out once more
        self.taken: dict[str, int] = {}  # how many each replica was first with
        self._ranges: dict[str, tuple[int, int]] = {"": (0, count)}
        self._again = deque[int]()  # that were lost
        self._under_way: dict[int, list[str]] = {}
        self._done: dict[int, str] = {}

    @property
    def complete(self) -> bool:
        """Whether all are done."""
        return len(self._done) == self.count

    def next(self, who: str) -> int | None:
        """A chunk for a replica; None where there is nothing that it could do."""
        found = self._fresh(who)
        if found is None:
            late = [(len(by), n, i) for i, (n, by) in enumerate(self._under_way.items()) if who not in by]
            copies, found, _ = min(late, default=(self._copies, None, 0), key=lambda one: (one[0], one[2]))
            if found is None or copies >= self._copies:
                return None
            self.backups += 1
        self._under_way.setdefault(found, []).append(who)
        return found

    def done(self, who: str, chunk: int) -> bool:
        """A replica has done one; whether it was the first."""
        if chunk in self._done or chunk not in range(self.count):
            return False
        self._under_way.pop(chunk, None)
        self._done[chunk] = who
        self.taken[who] = self.taken.get(who, 0) + 1
        return True

    def lost(self, who: str) -> None:
        """A replica is gone, and what it has sent may be, too."""
        for chunk, by in list(self._under_way.items()):
            by[:] = [other for other in by if other != who]
            if not by:
                del self._under_way[chunk]
                self._again.append(chunk)
        for chunk in [chunk for chunk, by in self._done.items() if by == who]:
            del self._done[chunk]
            self._again.append(chunk)
        self.taken.pop(who, None)

    def _fresh(self, who: str) -> int | None:
        """One that nobody does: the next after its last, or half of what the one with most left would do."""
        while self._again:
            chunk = self._again.popleft()
            if chunk not in self._done:
                return chunk
        start, stop = self._ranges.get(who, (0, 0))
        if start == stop:
            other = max(self._ranges, key=lambda name: self._ranges[name][1] - self._ranges[name][0])
            first, stop = self._ranges[other]
            if first == stop:
                return None
            start = (first + stop) // 2 if other else first
            self._ranges[other] = (first, start)
        self._ranges[who] = (start + 1, stop)
        return start

    def __repr__(self) -> str:
        return f"Chunks({len(self._done)} of {self.count} done, {len(self._under_way)} under way)"
