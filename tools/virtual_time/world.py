"""`World`: a virtual clock and the tasks that wait for it, one at a time; all that happens follows from a seed.

A task is a greenlet: it runs until it waits, and the world then goes on to the next event. No thread and no real time
is involved, so a seed always gives the same run.
"""

import heapq
import itertools
import math
import random
from collections.abc import Callable
from typing import cast

from greenlet import getcurrent, greenlet


class StandstillError(AssertionError):
    """Raised when a run does not end."""


class VirtualTask:
    """Something that waits now and then. stopped: it does not go on, though it may be woken; dead: never again."""

    def __init__(self, world: "World", name: str, run: Callable[[], object]) -> None:
        self.name, self.stopped, self.dead = name, False, False
        self._world, self._waits = world, 0
        self._greenlet = greenlet(run, parent=world.hub)
        world.tasks[self._greenlet] = self

    def begin(self, delay_s: float = 0.0) -> None:
        """Run it for the first time, after some delay."""
        self._world.at(delay_s, lambda: self._resume(self._waits))

    def block(self, timeout_s: float) -> None:
        """Wait until somebody wakes the task, or the time is over; it must be the present one."""
        self._waits += 1
        waits = self._waits
        if timeout_s < self._world.limit_s:
            self._world.at(timeout_s, lambda: self._resume(waits))
        self._world.hub.switch()

    def wake(self) -> None:
        """End the task's wait, if it waits."""
        waits = self._waits
        self._world.at(0.0, lambda: self._resume(waits))

    def proceed(self) -> None:
        """Let a stopped task go on."""
        self.stopped = False
        self.wake()

    @property
    def has_ended(self) -> bool:
        """Whether the task will do nothing more."""
        return self.dead or self._greenlet.dead

    def _resume(self, waits: int) -> None:
        if waits == self._waits and not self.stopped and not self.has_ended:
            self._waits += 1
            self._greenlet.switch()


class World:
    """The clock and the tasks of one run.

    limit_s: a run that takes longer stands still. now: the seconds since the beginning.
    """

    def __init__(self, seed: int, *, limit_s: float = math.inf) -> None:
        self.now, self.limit_s = 0.0, limit_s
        self.chance = random.Random(seed)
        self.hub = cast(greenlet, getcurrent())
        self.tasks: dict[greenlet, VirtualTask] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def clock(self) -> float:
        """Return the time, for what is given a clock."""
        return self.now

    @property
    def present_task(self) -> VirtualTask:
        """The task that runs."""
        return self.tasks[cast(greenlet, getcurrent())]

    def at(self, delay_s: float, event: Callable[[], None]) -> None:
        """Let something happen after a delay."""
        heapq.heappush(self._events, (self.now + delay_s, next(self._numbers), event))

    def sleep(self, seconds: float) -> None:
        """Let the present task wait for so long, whoever wakes it."""
        end = self.now + seconds
        while self.now < end:
            self.present_task.block(end - self.now)

    def run(self, until: Callable[[], bool]) -> None:
        """Let everything happen until a condition holds. Raises StandstillError if it never does."""
        while not until():
            if not self._events:
                raise StandstillError(f"nothing happens any more after {self.now:.1f} s")
            self.now, _, event = heapq.heappop(self._events)
            if self.now > self.limit_s:
                raise StandstillError(f"no end after {self.now:.1f} s")
            event()

    def end(self) -> None:
        """Throw all tasks away."""
        for task in self.tasks.values():
            task.dead = True
        self.tasks.clear()
        self._events.clear()
