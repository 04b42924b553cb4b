"""Where a user's loop is in its data after so many steps, by the passes that it made: arithmetic on them alone."""

import sys
from collections.abc import Sequence
from itertools import chain

import msgspec

from ..job.stream_position import LoopPass, LoopPosition

ALL = sys.maxsize  # batches: more than any pass has


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


def list_until(passes: Sequence[LoopPass], steps: int) -> list[LoopPass]:
    """Return the passes as they were after so many steps; where steps are missing, as they have probably gone on.

    passes: all but the last have ended; so of those that are returned.
    """
    found = list[LoopPass]()
    for entry in passes[:-1]:
        whole = min(entry.times, steps // entry.all_steps) if entry.all_steps else entry.times
        if whole:
            found.append(msgspec.structs.replace(entry, times=whole))
        steps -= whole * entry.all_steps
        if whole < entry.times:
            return [*found, cut_pass(entry, steps) if steps else LoopPass()]
    last = passes[-1] if passes else LoopPass()
    if steps <= last.all_steps:
        return [*found, cut_pass(last, steps) if steps else LoopPass(idle=last.idle)]
    return [*found, *_continue_pass(last, steps, find_usual(passes))]


def find_usual(passes: Sequence[LoopPass]) -> LoopPass | None:
    """Return the last pass that has ended and had steps, as others may be; None where there is none."""
    return next((msgspec.structs.replace(one, times=1) for one in reversed(passes[:-1]) if one.all_steps), None)


def _continue_pass(last: LoopPass, steps: int, usual: LoopPass | None) -> list[LoopPass]:
    """Return a pass that has not ended after so many steps from its beginning, or those that it has become since.

    usual: as it may have ended, and those that followed it.
    """
    if usual is None or steps <= usual.all_steps or last.all_steps > usual.all_steps:
        if usual is not None and usual.steps < steps <= usual.all_steps:
            return [msgspec.structs.replace(cut_pass(usual, steps), idle=last.idle)]
        known = next((one for one in (last, usual) if one is not None and one.steps), LoopPass(steps=1, stepped=1))
        more = round((steps - last.steps) * known.stepped / known.steps)
        stepped = last.stepped + more
        return [msgspec.structs.replace(last, steps=steps, stepped=stepped, batches=stepped, after=0, has_left=False)]
    whole, rest = divmod(steps, usual.all_steps)
    ended = [msgspec.structs.replace(usual, idle=last.idle if last.steps else max(last.idle, usual.idle))]
    ended += [msgspec.structs.replace(usual, times=whole - 1)] if whole > 1 else []
    return [*ended, cut_pass(usual, rest) if rest else LoopPass()]


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
    passes = list_until(position.passes, steps + position.ahead)
    before, now = replicas

    def share(count: int, *, all_of_it: bool) -> int:
        """Return how many batches of this replica are among the first that all replicas had, so many each."""
        samples = count * before * position.batch + (batch - 1 if all_of_it else 0)  # a last batch may be short
        return len(range(replica, samples // batch, now))

    def spread(one: LoopPass, *, all_of_it: bool) -> LoopPass:
        steps, stepped, batches = (share(n, all_of_it=all_of_it) for n in (one.steps, one.stepped, one.batches))
        return msgspec.structs.replace(one, steps=steps, stepped=stepped, batches=batches)

    here = [*(spread(one, all_of_it=True) for one in passes[:-1]), spread(passes[-1], all_of_it=False)]
    have = sum(one.times * one.all_steps for one in here)
    return LoopPosition(here, position.scheduled, batch, have - start_step)


def count_again(position: LoopPosition, steps: int, *, replicas: int, batch: int) -> int:
    """Return how many samples are trained on again by batches of so many. steps, replicas: those of before."""
    return list_until(position.passes, steps + position.ahead)[-1].stepped * replicas * position.batch % batch


class Replayed(msgspec.Struct, frozen=True):
    """What becomes of a pass of a loop that begins anew. before: the pass as it was; is_over: whether it had ended."""

    before: LoopPass
    window: PassWindow
    is_over: bool = False


class LoopReplay:
    """What a loop that begins anew passes over, until it is where it was after so many steps.

    passes: in which it took them, as far as they are known: all but the last have ended. A pass without steps is made
    again.
    """

    def __init__(self, steps: int = 0, passes: Sequence[LoopPass] = ()) -> None:
        *ended, last = list_until(passes, steps)
        over = ((msgspec.structs.replace(one, times=1), True) for one in ended for _ in range(one.times))
        self._expected = chain(over, [(last, last.after > 0)])  # and whether each is over
        self._usual_end = find_usual(passes)
        self._next: tuple[LoopPass, bool] | None = None
        self._idle = 0  # passes without steps until the next one
        self._short, self._rate = 0, 1.0  # steps for which the last pass had no batches, and batches of a step

    def begin_pass(self) -> Replayed:
        """Return what becomes of the pass that begins."""
        if self._next is None:
            self._next = next(self._expected, None)
            if self._next is None:
                return self._begin_short()
            self._idle = self._next[0].idle
        if self._idle:
            self._idle -= 1
            return Replayed(LoopPass(), PassWindow())
        (one, is_over), self._next = self._next, None
        if is_over:
            window = PassWindow(one.batches, one.batches, one.batches) if one.has_left else PassWindow(ALL)
            return Replayed(one, window, is_over=True)
        end = self._usual_end
        before = msgspec.structs.replace(one, batches=one.stepped, has_left=False)
        if not before.steps or end is None or not end.has_left or end.stepped < before.stepped:
            return Replayed(before, PassWindow(before.stepped))
        return Replayed(before, PassWindow(before.stepped, end.stepped, end.batches))

    def come_short(self, before: LoopPass, passed: int) -> LoopPass:
        """Take into account that a pass had no more batches than were passed over; return the pass as it was."""
        steps = round(before.steps * passed / before.stepped)
        self._short, self._rate = before.steps - steps, before.stepped / before.steps
        return msgspec.structs.replace(before, steps=steps, stepped=passed, batches=passed)

    def _begin_short(self) -> Replayed:
        """Return what becomes of a pass of which nothing is known but that steps are missing, if they are."""
        steps, self._short = self._short, 0
        stepped = round(steps * self._rate) if steps else 0
        return Replayed(LoopPass(steps=steps, stepped=stepped, batches=stepped), PassWindow(stepped))
