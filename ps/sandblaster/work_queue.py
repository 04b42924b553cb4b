"""`WorkQueue`: hands out the portions of a batch, in groups, to replicas of any speed.

Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.2: "The coordinator assigns each of the N
model replicas a small portion of work, much smaller than 1/Nth of the total size of a batch, and assigns replicas new
portions whenever they are free. ... the coordinator schedules multiple copies of the outstanding portions and uses the
result from whichever model replica finishes first. ... assigning sequential portions of data to the same worker".
"""

import heapq
from collections import deque

import msgspec

from .tree_sum import leaves_under

MAX_COPIES = 2  # of a late group that may be under way at a time


class PortionGroup(msgspec.Struct, frozen=True):
    """Portions that are handed out together: node (level, index) of the sum of an evaluation (tree_sum.py).

    place: of the `Evaluate` in batch `number`. first, count: the portions of that `Evaluate`, the leaves of the sum.
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
        """The numbers of the portions in the group."""
        leaves = leaves_under(self.level, self.index, self.count)
        return range(self.first + leaves.start, self.first + leaves.stop)


class WorkQueue:
    """Groups 0 to `count` - 1, handed out to replicas by name.

    copies: how many replicas may work at the same group at a time. No method looks at all groups or at all replicas,
    except `remove_replica`.
    """

    def __init__(self, count: int, *, copies: int = MAX_COPIES) -> None:
        self.count = count
        self.backups = 0  # groups that were handed out once more
        self.groups_finished: dict[str, int] = {}  # number of groups that each replica finished first
        self._ranges: dict[str, tuple[int, int]] = {"": (0, count)}  # groups that nobody works at, by replica
        self._longest = [(-count, "")]  # a heap of ranges by length; some have become shorter since
        self._lost = deque[int]()  # groups whose replica is gone
        self._workers: dict[int, list[str]] = {}  # who works at each group that is under way
        self._under_way: list[dict[int, None]] = [{} for _ in range(copies + 1)]  # by how many work at them
        self._done: dict[int, str] = {}

    @property
    def is_complete(self) -> bool:
        """Whether all groups are done."""
        return len(self._done) == self.count

    def take(self, replica: str) -> int | None:
        """Hand out a group to a replica; None if there is nothing that it could do."""
        group = self._take_fresh(replica)
        if group is None:
            # "schedules multiple copies of the outstanding portions"
            group = self._find_backup(replica)
            if group is None:
                return None
            self.backups += 1
        self._set_workers(group, [*self._workers.get(group, ()), replica])
        return group

    def finish(self, replica: str, group: int) -> bool:
        """Note that a replica has done a group; return whether it was the first."""
        # "uses the result from whichever model replica finishes first"
        if group in self._done or group not in range(self.count):
            return False
        self._set_workers(group, [])
        self._done[group] = replica
        self.groups_finished[replica] = self.groups_finished.get(replica, 0) + 1
        return True

    def remove_replica(self, replica: str) -> None:
        """Hand out again all that a replica had or has done: what it has sent may be lost with it."""
        for group in [group for group, workers in self._workers.items() if replica in workers]:
            others = [other for other in self._workers[group] if other != replica]
            self._set_workers(group, others)
            self._lost += [] if others else [group]
        for group in [group for group, worker in self._done.items() if worker == replica]:
            del self._done[group]
            self._lost.append(group)
        self.groups_finished.pop(replica, None)

    def _take_fresh(self, replica: str) -> int | None:
        """Take a group that nobody works at: the replica's next, or the second half of the longest range."""
        while self._lost:
            group = self._lost.popleft()
            if group not in self._done and group not in self._workers:
                return group
        # "assigning sequential portions of data to the same worker"
        start, stop = self._ranges.get(replica, (0, 0))
        if start == stop:
            other = self._pop_longest()
            if other is None:
                return None
            first, stop = self._ranges[other]
            start = (first + stop) // 2 if other else first
            self._ranges[other] = (first, start)
            heapq.heappush(self._longest, (first - start, other))
            heapq.heappush(self._longest, (start + 1 - stop, replica))
        self._ranges[replica] = (start + 1, stop)
        return start

    def _pop_longest(self) -> str | None:
        """Take the replica with the longest range from the heap; None if all ranges are empty."""
        while self._longest:
            size, name = heapq.heappop(self._longest)
            start, stop = self._ranges[name]
            if start - stop == size < 0:
                return name
            if start < stop:
                heapq.heappush(self._longest, (start - stop, name))
        return None

    def _find_backup(self, replica: str) -> int | None:
        """Find the group of other replicas at which the fewest work, and of those the one that began first."""
        for groups in self._under_way[1:-1]:
            for group in groups:
                if replica not in self._workers[group]:
                    return group
        return None

    def _set_workers(self, group: int, replicas: list[str]) -> None:
        """Set who works at a group."""
        self._under_way[len(self._workers.pop(group, ()))].pop(group, None)
        if replicas:
            self._workers[group] = replicas
            self._under_way[len(replicas)][group] = None

    def __repr__(self) -> str:
        return f"WorkQueue({len(self._done)} of {self.count} groups done, {len(self._workers)} under way)"
