"""`Timing`: when a checkpoint that goes by time is asked for, and after which step, so that all can make it there.

Shards and replica 0 each write their part when they come to that step. It lies ahead of what was told last, by as much
as is trained in MARGIN_S; where somebody had passed it already when it was asked for, that checkpoint is dropped, and
the next one is asked for at once, twice as far ahead. A pure core: no messages.
"""

import math
import time
from collections.abc import Callable

from .run_config import Course

MARGIN_S = 0.25


class Timing:
    """Of one run. One checkpoint at a time: none is asked for while another may still be completed.

    Number n is that after n times `checkpoint_every` steps of each replica. clock: in seconds.
    """

    def __init__(self, course: Course, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._course, self._clock = course, clock
        self._margin_s = MARGIN_S
        self._due_s = math.inf  # not before there is progress
        self._told: tuple[int, float] | None = None  # batches and seconds
        self._pace = 0.0  # batches a second
        self._pending = self._last = 0  # the number that was asked for and may come, and the last of all

    def progress(self, batches: int, seconds: float) -> int | None:
        """Replica 0 tells to how many batches all have come, in so many seconds by its own clock; which to ask for now.

        None where none is due, and where the run ends before it would be made.
        """
        now, course = self._clock(), self._course
        if self._told is None and course.checkpoint_s:
            self._due_s = now + course.checkpoint_s
        self._measure(batches, seconds)
        if self._pending or not self._pace or now < self._due_s:
            return None
        # The step that is being made, and what is made until all have heard of it.
        passed = course.checkpoint(batches + course.replicas + math.ceil(self._margin_s * self._pace))
        number = max(passed, self._last) + 1
        if course.checkpoint(course.batches - 1) < number:
            return None
        self._pending = self._last = number
        self._due_s = now + course.checkpoint_s
        return number

    def late(self, number: int) -> None:
        """Somebody had passed it before he heard of it."""
        if number == self._pending:
            self._margin_s *= 2
            self.interrupted()

    def interrupted(self) -> None:
        """Who was asked may be gone: another is asked for at once."""
        if self._pending:
            self._pending, self._due_s = 0, self._clock()

    def ended(self, number: int) -> None:
        """It is complete, or cannot be written."""
        if number == self._pending:
            self._pending = 0

    def unsaved(self) -> None:
        """Somebody cannot write: the one that was asked for may never be complete, so the next does not wait for it."""
        self._pending = 0

    def _measure(self, batches: int, seconds: float) -> None:
        """Where the clock went back, as after a restart, or nothing was done, the pace is as it was."""
        before, since = self._told or (batches, seconds)
        if batches > before and seconds > since:
            self._pace = (batches - before) / (seconds - since)
        self._told = batches, seconds

    def __repr__(self) -> str:
        return f"Timing(every {self._course.checkpoint_s:g} s, asked for {self._last}, margin {self._margin_s:g} s)"
