"""Where a user's loop is in its data after so many steps, by the passes that it made: arithmetic on them alone."""

import sys
from collections.abc import Iterator, Sequence

import msgspec

from ..job.stream_position import LoopPass, LoopPosition

ALL = sys.maxsize


class PassWindow:
    """Which batches of a pass a replica gives to the loop: those from `start` on, and before `stop` where it is known.

    Batches are those of this replica. last: how many are read then, as the loop left the pass there; None where it came
    to its end. What is not given is read all the same, as an order that is drawn may go on in the next pass.

    Attributes:
        passed: how many were passed over by now.
    """

    def __init__(self, start: int = 0, stop: int | None = None, last: int | None = None) -> None:
        self.start, self.stop, self.last, self.passed = start, stop, last, 0

    def gives(self, number: int) -> bool:
        """Return whether the loop is given a batch, and count it where it is passed over."""
        self.passed += number < self.start
        return self.start <= number and (self.stop is None or number < self.stop)


def append_pass(passes: list[LoopPass], one: LoopPass) -> None:
    """Add a pass to a list in which those that are alike and follow each other are one entry."""
    if passes and msgspec.structs.replace(passes[-1], times=1) == one:
        one = msgspec.structs.replace(one, times=passes.pop().times + 1)
    passes.append(one)


def cut_pass(one: LoopPass, steps: int) -> LoopPass:
    """Return a pass as it was when so many of its steps were taken; its batches are divided evenly among them."""
    if steps >= one.steps:
        return msgspec.structs.replace(one, times=1, after=steps - one.steps)
    stepped = round(steps * one.stepped / one.steps)
    return msgspec.structs.replace(one, times=1, steps=steps, stepped=stepped, batches=stepped, after=0)


def list_until(passes: Sequence[LoopPass], steps: int) -> tuple[list[LoopPass], int]:
    """Return the passes as they were after so many steps, and the steps that are more than they have.

    passes: all but the last have ended; so of those that are returned.
    """
    found = list[LoopPass]()
    for entry in passes[:-1]:
        whole = min(entry.times, steps // entry.all_steps) if entry.all_steps else entry.times
        if whole:
            found.append(msgspec.structs.replace(entry, times=whole))
        steps -= whole * entry.all_steps
        if whole < entry.times:
            return [*found, cut_pass(entry, steps) if steps else LoopPass()], 0
    last = passes[-1] if passes else LoopPass()
    more = max(0, steps - last.all_steps)
    return [*found, cut_pass(last, steps - more) if steps else LoopPass()], more


def count_own_steps(position: LoopPosition, start_step: int) -> LoopPosition:
    """Return the position of a replica that goes on after its last step, in a run that counts others."""
    steps = sum(one.times * one.all_steps for one in position.passes)
    return msgspec.structs.replace(position, ahead=steps - start_step) if steps else position


def spread_over(
    position: LoopPosition, steps: int, *, start_step: int, replicas: tuple[int, int], batch: int, replica: int
) -> LoopPosition:
    """Return where a replica begins in a run that has other replicas, or batches, than the one that it goes on from.

    Args:
        position: of replica 0 there.
        steps: that each replica had made there; start_step: those that this run counts instead.
        replicas: before and now.
        batch: samples of one now.
    """
    passes, more = list_until(position.passes, steps + position.ahead)
    before, now = replicas

    def share(count: int, *, all_of_it: bool = False) -> int:
        """Return how many batches of this replica are among the first that all replicas had, so many each."""
        samples = count * before * position.batch + (batch - 1 if all_of_it else 0)  # a last batch may be short
        return len(range(replica, samples // batch, now))

    def spread(one: LoopPass, *, all_of_it: bool) -> LoopPass:
        steps, stepped, batches = (share(n, all_of_it=all_of_it) for n in (one.steps, one.stepped, one.batches))
        return msgspec.structs.replace(one, steps=steps, stepped=stepped, batches=batches)

    ended = len(passes) if more else len(passes) - 1
    here = [spread(one, all_of_it=number < ended) for number, one in enumerate(passes)]
    have = sum(one.times * one.all_steps for one in here) + share(more)
    return LoopPosition(here, position.scheduled, batch, have - start_step)


def count_again(position: LoopPosition, steps: int, *, replicas: int, batch: int) -> int:
    """Return how many samples are trained on again by batches of so many. steps, replicas: those of before."""
    passes, more = list_until(position.passes, steps + position.ahead)
    taken = more or passes[-1].stepped
    return taken * replicas * position.batch % batch


class Replayed(msgspec.Struct, frozen=True):
    """What becomes of a pass of a loop that begins anew. before: the pass as it was; is_over: whether it had ended."""

    before: LoopPass
    window: PassWindow
    is_over: bool = False


class LoopReplay:
    """What a loop that begins anew passes over, until it is where it was after so many steps.

    passes: in which it took them, as far as they are known: all but the last have ended. Where steps are missing there,
    it is taken to have gone on as in the pass before. A pass without steps is made again.
    """

    def __init__(self, steps: int = 0, passes: Sequence[LoopPass] = ()) -> None:
        self._remaining = steps
        self._ended, self._last = list(passes[:-1]), passes[-1] if passes else LoopPass()
        ends = {(one.has_left, one.stepped if one.has_left else 0): one for one in self._ended}
        self._usual_end = next(iter(ends.values())) if len(ends) == 1 else None
        self._expected = self._expect()
        self._idle: int | None = None  # passes without steps until the next one that had some
        self._next = LoopPass(), False

    def begin_pass(self) -> Replayed:
        """Return what becomes of the pass that begins."""
        if not self._remaining:
            return Replayed(LoopPass(), PassWindow())
        if self._idle is None:
            self._next = next(self._expected)
            self._idle = self._next[0].idle
        if self._idle:
            self._idle -= 1
            return Replayed(LoopPass(), PassWindow())
        self._idle, (one, has_ended) = None, self._next
        steps = min(self._remaining, one.all_steps)
        self._remaining -= steps
        before = cut_pass(one, steps)
        if before.after or (has_ended and steps >= one.steps):
            window = PassWindow(one.batches, one.batches, one.batches) if one.has_left else PassWindow(ALL)
            return Replayed(before, window, is_over=True)
        end = one if has_ended else self._usual_end
        if end is None or not end.has_left or end.stepped < before.stepped:
            return Replayed(msgspec.structs.replace(before, has_left=False), PassWindow(before.stepped))
        return Replayed(before, PassWindow(before.stepped, end.stepped, end.batches))

    def come_short(self, before: LoopPass, passed: int) -> LoopPass:
        """Take into account that a pass had no more batches than were passed over; return the pass as it was."""
        steps = round(before.steps * passed / before.stepped)
        self._remaining += before.steps - steps
        return msgspec.structs.replace(before, steps=steps, stepped=passed, batches=passed)

    def _expect(self) -> Iterator[tuple[LoopPass, bool]]:
        """Yield passes and whether they had ended: those that were made, and what they may have been followed by."""
        for entry in self._ended:
            for _ in range(entry.times):
                yield msgspec.structs.replace(entry, times=1), True
        if self._remaining <= self._last.all_steps:
            yield self._last, False
        while self._ended:
            yield msgspec.structs.replace(self._ended[-1], times=1), True
        rate = self._last.stepped / self._last.steps if self._last.steps else 1.0
        while True:
            steps = self._remaining
            yield LoopPass(steps=steps, stepped=round(rate * steps), batches=round(rate * steps)), False
