"""`ReaderDemand`: how many processes shall read, so that training waits little for its batches.

How many are of use nobody knows before: it hangs on what a sample costs, on the step, on what samples wait for, and on
who else wants the cores. So more are tried where training waits, and kept where batches then come faster.
"""

import time
from collections.abc import Callable

SETTLING = 8  # batches after the number of processes has changed: those before were read by others
WINDOW = 16  # batches that are looked at together
LATE = 0.04  # of its time that training may wait for batches
FASTER = 0.03  # of the time of a batch that more processes must save
REST = 8  # windows until more are tried again that were of no use, as others may have had the cores; then twice as many


class ReaderDemand:
    """Counts batches as they are taken. count: how many processes shall read. clock: returns seconds."""

    def __init__(self, count: int, most: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.count = count
        self._most, self._clock = most, clock
        self._kept, self._kept_s = count, 0.0  # that more are compared with, and the seconds of a batch with these
        self._rest, self._next_rest = 0, REST
        self._waited_s, self._seconds, self._last, self._left = 0.0, list[float](), clock(), SETTLING + WINDOW

    def note(self, waited_s: float) -> None:
        """Take note of a batch. waited_s: that training waited for it."""
        if self.count == self._most == self._kept:
            return
        now = self._clock()
        self._left -= 1
        if self._left < WINDOW:
            self._waited_s += waited_s
            self._seconds.append(now - self._last)
        self._last = now
        if not self._left:
            self._decide()

    def _decide(self) -> None:
        """Keep what was tried or give it up; try more where training waits."""
        total = sum(self._seconds)
        batch_s = (total - max(self._seconds)) / (WINDOW - 1)  # without a pause, as for an evaluation
        before = self.count
        if self.count > self._kept and batch_s > (1 - FASTER) * self._kept_s:
            self.count, self._rest, self._next_rest = self._kept, self._next_rest, 2 * self._next_rest
        elif self._rest:
            self._rest -= 1
        elif self._waited_s > LATE * total:
            self._kept, self._kept_s = self.count, batch_s
            self.count = min(2 * self.count, self._most)
        else:
            self._kept = self.count
        self._left = WINDOW + (SETTLING if self.count != before else 0)
        self._waited_s, self._seconds = 0.0, []

    def __repr__(self) -> str:
        return f"ReaderDemand({self.count} processes, {self._waited_s:.3f} s waited, {self._left} batches to go)"
