"""`LoopCounts`: how the loop of a replica goes through its data and calls its schedulers, and what it passes over."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ..job.stream_position import LoopPass, LoopPosition
from .loop_passes import LoopReplay, PassWindow, Replayed, append_pass

NESTED = "a loop over the data goes on after another one has begun: a run that is resumed cannot find its place in both"


class LoopCounts:
    """The passes that the loop of a replica makes over its data, and how often its schedulers are called within them.

    Attributes:
        is_reading: whether a pass is under way.
        window: which batches of the present pass the loop is given.
        is_over: whether it is given none, as the pass was made before.
    """

    def __init__(self) -> None:
        self.is_reading, self.window, self.is_over = False, PassWindow(), False
        self._schedulers, self._called, self._begun_at = list[WatchedScheduler](), list[int](), 0
        self._replay, self._batch, self._ahead = LoopReplay(), 1, 0
        self._done, self._now, self._idle = list[LoopPass](), LoopPass(), 0
        self._has_begun = self._has_ended = False
        self._to_replay = 0  # steps after a pass that is over

    @property
    def calls(self) -> list[int]:
        """How often each scheduler was called within the loops, in the order in which they are watched."""
        return [scheduler.calls for scheduler in self._schedulers]

    @property
    def passes(self) -> list[LoopPass]:
        """The passes up to now; all but the last have ended."""
        if not self._has_begun:
            return []
        passes, now = list(self._done), msgspec.structs.replace(self._now, idle=self._idle)
        if not self._has_ended or now.has_left:  # one that was left may well go on
            return [*passes, now]
        if now.all_steps or self.is_over:
            append_pass(passes, now)
            return [*passes, LoopPass()]
        return [*passes, LoopPass(idle=self._idle + 1)]

    def begin_at(self, step: int, position: LoopPosition) -> None:
        """Pass over what was taken before a step, and call the schedulers for that as often as they were called."""
        self._replay = LoopReplay(step + position.ahead, position.passes)
        self._batch, self._ahead, self._begun_at = position.batch, position.ahead, step + position.ahead
        self._called = [round(step * rate) for rate in position.scheduled]

    def describe(self, scheduled_steps: int) -> LoopPosition:
        """Return how the loop goes. scheduled_steps: those for which the schedulers were called, where they were."""
        scheduled = [calls / max(1, scheduled_steps) for calls in self.calls]
        return LoopPosition(self.passes, scheduled, self._batch, self._ahead)

    def take_step(self) -> bool:
        """Note that the loop takes a step; return whether it had taken it before, which it only repeats."""
        if self._to_replay:
            self._to_replay -= 1
            return True
        now = self._now
        if not self._has_begun:
            self._ahead -= 1  # it is of no pass
        elif self._has_ended:
            self._now = msgspec.structs.replace(now, after=now.after + 1)
        else:
            self._now = msgspec.structs.replace(now, steps=now.steps + 1, stepped=now.batches)
        return False

    def iterate(self, batches: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Yield the batches of a pass that begins. batches: begins to read what the window gives of them."""
        replayed = self._begin_pass()
        self.is_reading, has_ended, has_settled = True, False, False
        try:
            for batch in batches():
                if not has_settled:
                    self._settle(replayed, has_ended=False)
                    has_settled = True
                self._now = msgspec.structs.replace(self._now, batches=self._now.batches + 1)
                yield batch
                if replayed.window is not self.window:
                    warnings.warn(NESTED, stacklevel=1)
            has_ended = True
            if not has_settled:
                self._settle(replayed, has_ended=True)
        finally:
            if replayed.window is self.window:  # else another pass has begun
                self.is_reading = False
                self._end_pass(replayed, has_ended)

    def watch(self, scheduler: Any) -> None:
        """Count the calls of a scheduler from now on, which is the object's own `step`."""
        number = len(self._schedulers)
        called = self._called[number] if number < len(self._called) else 0
        self._schedulers.append(WatchedScheduler(scheduler, self, called, self._begun_at))

    def _begin_pass(self) -> Replayed:
        if self._now.all_steps or self.is_over:
            has_left = self._now.has_left or not self._has_ended
            append_pass(self._done, msgspec.structs.replace(self._now, idle=self._idle, has_left=has_left))
            self._idle = 0
        elif self._has_begun:
            self._idle += 1
        replayed = self._replay.begin_pass()
        self._has_begun, self._has_ended, self._to_replay = True, False, 0
        self._now, self.window = msgspec.structs.replace(replayed.before, idle=0), replayed.window
        self.is_over = replayed.is_over
        return replayed

    def _settle(self, replayed: Replayed, *, has_ended: bool) -> None:
        """Once it is known how much is passed over, call the schedulers for that. has_ended: nothing else is there."""
        if has_ended and not replayed.is_over and replayed.window.passed < replayed.window.start:
            self._now = self._replay.come_short(replayed.before, replayed.window.passed)
        for scheduler in self._schedulers:
            scheduler.catch_up(self._now.all_steps)

    def _end_pass(self, replayed: Replayed, has_ended: bool) -> None:
        self._has_ended = True
        if replayed.is_over:
            self._to_replay = replayed.before.after
            return
        is_usual = has_ended and replayed.window.stop is not None
        self._now = msgspec.structs.replace(self._now, has_left=is_usual or not has_ended)
        if is_usual:
            self._now = msgspec.structs.replace(self._now, batches=replayed.window.last)
        if not has_ended and replayed.window.start and replayed.window.stop is None:
            warnings.warn(
                f"the loop has left its data in a pass that was resumed at batch {replayed.window.start}: if it counts "
                "batches or steps from 0 there, that was too late; run.start_step is the number of the first step",
                stacklevel=1,
            )


class WatchedScheduler:
    """A scheduler whose calls within the loops are counted, each by itself: one is called for each batch, one never.

    called: how often it was before this process began, in so many steps.
    """

    def __init__(self, scheduler: Any, counts: LoopCounts, called: int, steps: int) -> None:
        self.calls, self._per_step, self._due = called, called / max(1, steps), 0.0
        self._step: Callable[..., Any] = scheduler.step

        def step(*arguments: Any, **options: Any) -> Any:
            self.calls += counts.is_reading
            return self._step(*arguments, **options)

        scheduler.step = step

    def catch_up(self, steps: int) -> None:
        """Call it as often as it was called for steps that are passed over."""
        self._due += steps * self._per_step
        while self._due >= 1 - 1e-9:
            self._due -= 1
            self._step()
