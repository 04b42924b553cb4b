"""When checkpoints by time are made: `CheckpointTiming` asks for them.

A checkpoint by time is asked for some steps ahead, so that all can make it after the same step: shards and replica 0
each write their part when they come to that step. It lies ahead of the last progress by as much as is trained in
MARGIN_S; where somebody had passed it already when it was asked for, that checkpoint is dropped, and the next one is
asked for at once, twice as far ahead. A pure core: no messages.
"""

import math
import time
from collections.abc import Callable

from .process_specs import TrainingSpec

MARGIN_S = 0.25


class CheckpointTiming:
    """When the checkpoints of one run by time are due, one at a time: none while another may still be completed.

    Number n is the checkpoint after n times `checkpoint_every` steps of each replica. clock: in seconds.
    """

    def __init__(self, training: TrainingSpec, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._training, self._clock = training, clock
        self._margin_s = MARGIN_S
        self._due_s = math.inf  # not before there is progress
        self._progress: tuple[int, float] | None = None  # batches and seconds, when it was told last
        self._pace = 0.0  # batches a second
        self._pending = self._last = 0  # the number that was asked for and may come, and the last of all

    def note_progress(self, batches: int, seconds: float) -> int | None:
        """Return the number of the checkpoint to ask for now; None where none is due, or the run ends before it.

        Replica 0 has told that all together have come to so many batches, in so many seconds by its own clock.
        """
        now, training = self._clock(), self._training
        if self._progress is None and training.checkpoint_s:
            self._due_s = now + training.checkpoint_s
        self._measure(batches, seconds)
        if self._pending or not self._pace or now < self._due_s:
            return None
        # The step that is being made, and what is made until all have heard of it.
        passed = training.checkpoint(batches + training.replicas + math.ceil(self._margin_s * self._pace))
        number = max(passed, self._last) + 1
        if training.checkpoint(training.batches - 1) < number:
            return None
        self._pending = self._last = number
        self._due_s = now + training.checkpoint_s
        return number

    def mark_late(self, number: int) -> None:
        """Note that somebody had passed a checkpoint before he heard of it: another is asked for, further ahead."""
        if number == self._pending:
            self._margin_s *= 2
            self.mark_interrupted()

    def mark_interrupted(self) -> None:
        """Note that who was asked may be gone: another checkpoint is asked for at once."""
        if self._pending:
            self._pending, self._due_s = 0, self._clock()

    def mark_ended(self, number: int) -> None:
        """Note that a checkpoint is complete, or cannot be written."""
        if number == self._pending:
            self._pending = 0

    def mark_unsaved(self) -> None:
        """Note that somebody cannot write: the pending one may never be complete, and the next does not wait for it."""
        self._pending = 0

    def _measure(self, batches: int, seconds: float) -> None:
        """Measure the pace; it stays as it was where the clock went back, as after a restart, or nothing was done."""
        before, since = self._progress or (batches, seconds)
        if batches > before and seconds > since:
            self._pace = (batches - before) / (seconds - since)
        self._progress = batches, seconds

    def __repr__(self) -> str:
        every_s = self._training.checkpoint_s
        return f"CheckpointTiming(every {every_s:g} s, asked for {self._last}, margin {self._margin_s:g} s)"
