"""Which global batch a worker computes at each step: in turn with the other replicas, or what it is leased.

Both have `first`, the step to begin with; `number(step)`, the global batch of a step, None after the last;
`reached(step)`, how many batches all replicas have come to by the end of a step, about; and `more()`, whether there is
more to do after the last step, from the new `first` on.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from .batch_leases import Lease
from ...runtime.launcher.assignment import LAUNCHER
from ...runtime.channel.mailbox import Mailbox
from ...runtime.channel.message import Message
from ..job.run_config import Course

PATIENCE_S = 7 * 24 * 3600.0  # for other replicas to end their share


class Turns(Protocol):
    """See above."""

    first: int

    def number(self, step: int) -> int | None: ...

    def reached(self, step: int) -> int: ...

    def more(self) -> bool: ...


class InTurn:
    """Replica r of n takes batches r, n + r, 2n + r, ..."""

    def __init__(self, course: Course, replica: int, first: int) -> None:
        self.first = first
        self._course, self._replica = course, replica

    def number(self, step: int) -> int | None:
        return self._replica + step * self._course.replicas if step < self._course.steps else None

    def reached(self, step: int) -> int:
        return (step + 1) * self._course.replicas

    def more(self) -> bool:
        return False


class Leased:
    """Takes what the launcher hands out (handing_out.py). The next range is asked for while half of one is left.

    first: the step to begin with, or the one that another machine of the replica has named before. settled: steps of
    which the shards have all that was pushed. All machines of a replica ask the same questions.
    """

    def __init__(
        self, mailbox: Mailbox, first: int, settled: Callable[[], int], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._mailbox, self._settled, self._clock = mailbox, settled, clock
        self._known = deque[tuple[int, Lease]]()  # with the step of the first batch; from the step before the present
        self._chunk = 0  # the question that is asked or will be next
        self._asked, self._open = False, True
        mailbox.send(LAUNCHER, Message("enter", body={"step": first}))
        entered = mailbox.wait([(LAUNCHER, "entered", 0, 0, 0)])
        self.first = self._next = int(entered.body["step"])  # `_next`: the first step of which nothing is known
        self._paced = (self.first, clock())

    def number(self, step: int) -> int | None:
        while step >= self._next and self._open:
            self._ask(step)
            self._take()
        if step >= self._next:
            return None
        while self._known[0][0] + self._known[0][1].count < step:
            self._known.popleft()
        begin, lease = self._known[-1]
        if step - begin >= lease.count // 2 and self._open:
            self._ask(step)
        return self._at(step)

    def reached(self, step: int) -> int:
        return self._at(step) + 1

    def more(self) -> bool:
        """Says that all is done, and waits until others have lost some of theirs, or all are done too."""
        self._send({"idle": True, "settled": self._next})
        self._open = True
        self._take(timeout_s=PATIENCE_S)
        self.first, self._paced = self._next, (self._next, self._clock())
        return self._open

    def _at(self, step: int) -> int:
        return next(lease.first + step - begin for begin, lease in self._known if begin <= step < begin + lease.count)

    def _ask(self, step: int) -> None:
        """Ask for the next range while a step is prepared; the one before it is not made yet."""
        if self._asked:
            return
        made, now = max(self.first, step - 1), self._clock()
        since, then = self._paced
        pace_s = (now - then) / (made - since) if made > since else None
        self._paced = (made, now)
        self._send({"idle": False, "settled": max(self.first, self._settled()), "pace_s": pace_s})

    def _send(self, body: dict[str, bool | int | float | None]) -> None:
        self._asked = True
        self._mailbox.send(LAUNCHER, Message("lease", edge=self._chunk, body=body))

    def _take(self, timeout_s: float | None = None) -> None:
        """Wait for the answer to the question."""
        message = self._mailbox.wait([(LAUNCHER, "leased", 0, 0, self._chunk)], timeout_s=timeout_s)
        self._asked, self._chunk = False, self._chunk + 1
        lease = Lease(message.body["first"], message.body["count"])
        if not lease.count:
            self._open = False
            return
        self._known.append((self._next, lease))
        self._next += lease.count
