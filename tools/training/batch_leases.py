"""`Leases`: which replica computes which batches - ranges of global batch numbers, handed out in order, each once.

Guided self-scheduling (Polychronopoulos and Kuck, IEEE Transactions on Computers, 1987): large ranges first, single
batches at the end, so that all replicas end together though some are slower. A pure core: no clock, no messages.
"""

from dataclasses import dataclass, field

import msgspec

from ...errors import NetworkError

LEASE_S = 0.25  # of work in a range, at most
PARTS = 8  # a range is at most this part of a replica's even share of what is left

Start = tuple[int, int]  # a replica, and how often it was started before


class Lease(msgspec.Struct, frozen=True):
    """Global batches `first` to `first + count - 1`; none where count is 0."""

    first: int
    count: int


NOTHING = Lease(0, 0)


@dataclass
class _Holder:
    """One start of a replica. answers: to its questions, in order; done: of the batches in them, from the first."""

    answers: list[Lease] = field(default_factory=list)
    held: int = 0
    done: int = 0
    leaving: bool = False
    ended: bool = False

    def undone(self) -> list[Lease]:
        """What it has been leased and is not known to have done."""
        rest, skip = [], self.done
        for lease in self.answers:
            passed = min(skip, lease.count)
            skip -= passed
            if passed < lease.count:
                rest.append(Lease(lease.first + passed, lease.count - passed))
        return rest


class Leases:
    """Hands out batches `first` to `batches - 1`.

    A start of a replica asks question after question (chunk 0, 1, ...); all machines of a cut replica ask the same
    ones, and each question has one answer, however often it is asked.
    """

    def __init__(self, batches: int, *, first: int = 0) -> None:
        self._free = [Lease(first, batches - first)] if batches > first else []  # in order, apart from each other
        self._holders: dict[Start, _Holder] = {}
        self.batches = batches
        self.taken: dict[int, int] = {}  # batches that each replica has done for good
        self.repeated: dict[int, int] = {}  # batches that each replica had and that may have been computed twice

    @property
    def left(self) -> int:
        """Batches that nobody has."""
        return sum(lease.count for lease in self._free)

    @property
    def over(self) -> bool:
        """Whether all batches are done."""
        return not self._free and all(holder.done == holder.held for holder in self._holders.values())

    def ask(self, start: Start, chunk: int, *, pace_s: float | None = None, idle: bool = False) -> Lease | None:
        """What `start` computes next; NOTHING where nobody knows of more, and None where the answer has to wait.

        pace_s: seconds that a batch takes it, as far as it knows. idle: it has done all that it was leased; NOTHING is
        the end for it then, and the answer waits until there are batches or all are done.
        """
        holder = self._holders.setdefault(start, _Holder())
        if chunk < len(holder.answers):
            return holder.answers[chunk]
        if chunk > len(holder.answers) or chunk < 0:
            raise NetworkError(
                "E580",
                f"replica {start[0]} asks for its range {chunk} of batches; it was given {len(holder.answers)} so far",
                fix="check that all roles belong to this run and are of one version of cutset",
            )
        if idle and not self._free and not self.over and not holder.leaving:
            return None
        lease = NOTHING if holder.leaving else self._take(self._size(pace_s))
        holder.ended = idle and lease == NOTHING
        holder.answers.append(lease)
        holder.held += lease.count
        return lease

    def done(self, start: Start, count: int) -> None:
        """A start has done that many of its batches, so that they are never handed out again."""
        holder = self._holders.setdefault(start, _Holder())
        count = min(count, holder.held)
        if count > holder.done:
            self.taken[start[0]] = self.taken.get(start[0], 0) + count - holder.done
            holder.done = count

    def leave(self, start: Start) -> None:
        """Hand this start nothing more."""
        self._holders.setdefault(start, _Holder()).leaving = True

    def lost(self, start: Start) -> int:
        """Take back what a start has not done, to be handed out again; how many batches that are."""
        holder = self._holders.pop(start, _Holder())
        back = holder.undone()
        self._free = _joined([*self._free, *back])
        count = sum(lease.count for lease in back)
        if count:
            self.repeated[start[0]] = self.repeated.get(start[0], 0) + count
        return count

    def _size(self, pace_s: float | None) -> int:
        """Batches of the next range."""
        sharing = sum(not (holder.leaving or holder.ended) for holder in self._holders.values())
        even = self.left // (PARTS * max(1, sharing))
        quick = 1 if pace_s is None else even if pace_s * even <= LEASE_S else int(LEASE_S / pace_s)
        return max(1, min(even, quick))

    def _take(self, size: int) -> Lease:
        """The next batches in order, `size` at most."""
        if not self._free:
            return NOTHING
        lease = self._free.pop(0)
        if lease.count > size:
            self._free.insert(0, Lease(lease.first + size, lease.count - size))
        return Lease(lease.first, min(size, lease.count))

    def __repr__(self) -> str:
        holders = {start: f"{holder.done} of {holder.held}" for start, holder in self._holders.items()}
        return f"Leases({self.left} of {self.batches} left, done={holders})"


def _joined(leases: list[Lease]) -> list[Lease]:
    """In order, neighbours made one."""
    found: list[Lease] = []
    for lease in sorted(leases, key=lambda one: one.first):
        if found and found[-1].first + found[-1].count == lease.first:
            found[-1] = Lease(found[-1].first, found[-1].count + lease.count)
        else:
            found.append(lease)
    return found
