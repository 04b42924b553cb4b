"""`ReaderDemand`: tells when more processes that read would let training wait less for its batches.

How many are needed nobody knows before: it hangs on what a sample costs, on the step, and on what samples wait for.
Processes that wait, for a disk or a network, hinder nobody, so there can be many; those that queue for a core would
queue longer beside more.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

SETTLING = 8  # batches after processes were added: those before were read by fewer
WINDOW = 16  # batches that are looked at together
LATE = 0.04  # of its time that training may wait for batches
QUEUED = 0.25  # of their time that processes may queue for a core


class ReadTimes(NamedTuple):
    """What reading a batch took. waited_s: that training waited for it. queued: part of the time without a core."""

    waited_s: float
    queued: float


class ReaderDemand:
    """Counts batches as they are taken. clock: returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._reset(SETTLING)

    def count(self, times: ReadTimes) -> bool:
        """Count a batch; return whether more processes shall read from now on."""
        self._left -= 1
        if self._left >= WINDOW:
            self._start = self._clock()
            return False
        self._waited_s += times.waited_s
        self._queued += times.queued / WINDOW
        if self._left:
            return False
        is_late = self._waited_s > LATE * (self._clock() - self._start)
        wants_more = is_late and self._queued < QUEUED
        self._reset(SETTLING if wants_more else 0)
        return wants_more

    def _reset(self, settling: int) -> None:
        self._left, self._start = settling + WINDOW, self._clock()
        self._waited_s = self._queued = 0.0

    def __repr__(self) -> str:
        return f"ReaderDemand({self._waited_s:.3f} s waited, {self._left} batches to go)"
