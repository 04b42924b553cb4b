"""`World`: a virtual clock, tasks that run one at a time, and a network between them; all of it follows from a seed.

A task is a greenlet: it runs until it waits, and the world then goes on to the next event. No thread and no real time
is involved, so a seed always gives the same run. The functions of `time` are replaced before anything else is imported
(`install_clock`), since many defaults of arguments are bound to them.
"""

import heapq
import itertools
import random
import time
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

LIMIT_S = 1800.0  # of virtual time; a run that takes longer stands still


class StandstillError(AssertionError):
    """Raised when a run does not end."""


class Task:
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
        if timeout_s < LIMIT_S:
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

    def _resume(self, waits: int) -> None:
        if waits == self._waits and not self.stopped and not self.dead and not self._greenlet.dead:
            self._waits += 1
            self._greenlet.switch()


class World:
    """The clock, the tasks and the network of one run."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.chance = random.Random(seed)
        self.hub = getcurrent()
        self.tasks: dict[greenlet, Task] = {}
        self.inboxes: dict[str, Callable[[Any], None]] = {}  # by name, who takes messages
        self.broken: set[frozenset[str]] = set()  # pairs of names between which nothing passes
        self.loses: Callable[[str, str], bool] = lambda source, target: False  # whether the network loses a message
        self.disk_full_until = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._arrivals: dict[tuple[str, str], float] = {}

    def at(self, delay_s: float, event: Callable[[], None]) -> None:
        """Let something happen after a delay."""
        heapq.heappush(self._events, (self.now + delay_s, next(self._numbers), event))

    def sleep(self, seconds: float) -> None:
        """Let the present task wait for so long, whoever wakes it."""
        end = self.now + seconds
        while self.now < end:
            self.tasks[getcurrent()].block(end - self.now)

    def post(self, source: str, target: str, message: Any) -> None:
        """Deliver a message after some delay, in order for each pair."""
        if frozenset((source, target)) in self.broken or self.loses(source, target):
            return
        arrival = max(self.now + self.chance.uniform(1e-4, 5e-3), self._arrivals.get((source, target), 0.0))
        self._arrivals[source, target] = arrival
        self.at(arrival - self.now, lambda: self._deliver(target, message))

    def run(self, until: Callable[[], bool]) -> None:
        """Let everything happen until a condition holds."""
        while not until():
            if not self._events:
                raise StandstillError(f"nothing happens any more after {self.now:.1f} s")
            self.now, _, event = heapq.heappop(self._events)
            if self.now > LIMIT_S:
                raise StandstillError(f"no end after {self.now:.1f} s")
            event()

    def end(self) -> None:
        """Throw all tasks away."""
        for task in self.tasks.values():
            task.dead = True
        self.tasks.clear()
        self.inboxes.clear()
        self._events.clear()

    def _deliver(self, target: str, message: Any) -> None:
        if target in self.inboxes:
            self.inboxes[target](message)


_present: list[World] = []
_real_monotonic, _real_sleep = time.monotonic, time.sleep


def install_clock() -> None:
    """Have the functions of `time` tell the time of the present world, where there is one."""
    time.monotonic = time.perf_counter = lambda: _present[-1].now if _present else _real_monotonic()
    time.sleep = lambda seconds: _present[-1].sleep(seconds) if _present else _real_sleep(seconds)


def enter(world: World) -> None:
    """Make a world the present one."""
    _present[:] = [world]


def present() -> World:
    """Return the present world."""
    return _present[-1]


def leave() -> None:
    """Return to real time."""
    _present.clear()
