"""`Crew`: which replicas take part in a run while some join and leave. A replica that left does not come back: the next
that joins has a new number."""

from ...errors import UsageError

JOINS_MOST = 16  # in a run
NAMES_MOST = 1024  # channel names that are kept ready for those who join; each is a key on everyone's list


class Crew:
    """Replicas 0 to `replicas` - 1 at first. at_once: that may take part together; names: that each may need."""

    def __init__(self, replicas: int, *, at_once: int, names: int) -> None:
        self.present = list(range(replicas))  # without those that shall leave
        self.leaving: set[int] = set()
        self._at_once = at_once
        joins = max(0, min(JOINS_MOST, NAMES_MOST // names, at_once - 1))
        self.numbers = range(replicas + joins)  # that there can ever be
        self._next = replicas

    @property
    def most(self) -> int:
        """That can take part from now on."""
        return min(self._at_once - len(self.leaving), len(self.present) + self.numbers.stop - self._next)

    def become(self, replicas: int) -> tuple[list[int], list[int]]:
        """So many from now on: who joins and who leaves, the last ones. UsageError where there cannot be so many."""
        if not 1 <= replicas <= self.most:
            facts = f"{replicas} replicas were asked for; there can be 1 to {self.most} now"
            raise UsageError("E274", facts, fix=f"--replicas {min(max(replicas, 1), self.most)}")
        join = list(range(self._next, self._next + max(0, replicas - len(self.present))))
        leave = self.present[replicas:]
        self._next += len(join)
        self.present = self.present[:replicas] + join
        self.leaving |= set(leave)
        return join, leave

    def gone(self, replica: int) -> None:
        """A replica takes no part any more."""
        self.leaving.discard(replica)
        self.present = [other for other in self.present if other != replica]

    def __repr__(self) -> str:
        return f"Crew({self.present}, leaving={sorted(self.leaving)})"
