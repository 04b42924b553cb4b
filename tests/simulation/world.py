"""`FaultyWorld`: a world with a network that loses messages, and with disks that are full; and the functions of `time`.

These tell the time of the present world, and are replaced before anything else is imported (`install_clock`), since
many defaults of arguments are bound to them.
"""

import time
from collections.abc import Callable
from typing import Any

from cutset.tools.virtual_time.world import VirtualTask, World

LIMIT_S = 1800.0  # of virtual time; a run that takes longer stands still

__all__ = ["FaultyWorld", "VirtualTask", "enter", "install_clock", "leave", "present"]


class FaultyWorld(World):
    """The clock, the tasks, the network and the disks of one run."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, limit_s=LIMIT_S)
        self.inboxes: dict[str, Callable[[Any], None]] = {}  # by name, who takes messages
        self.broken: set[frozenset[str]] = set()  # pairs of names between which nothing passes
        self.loses: Callable[[str, str], bool] = lambda source, target: False  # whether the network loses a message
        self.disk_full_until = 0.0
        self._arrivals: dict[tuple[str, str], float] = {}

    def post(self, source: str, target: str, message: Any) -> None:
        """Deliver a message after some delay, in order for each pair."""
        if frozenset((source, target)) in self.broken or self.loses(source, target):
            return
        arrival = max(self.now + self.chance.uniform(1e-4, 5e-3), self._arrivals.get((source, target), 0.0))
        self._arrivals[source, target] = arrival
        self.at(arrival - self.now, lambda: self._deliver(target, message))

    def end(self) -> None:
        """Throw all tasks away."""
        super().end()
        self.inboxes.clear()

    def _deliver(self, target: str, message: Any) -> None:
        if target in self.inboxes:
            self.inboxes[target](message)


_present: list[FaultyWorld] = []
_real_monotonic, _real_sleep = time.monotonic, time.sleep


def install_clock() -> None:
    """Have the functions of `time` tell the time of the present world, where there is one."""
    time.monotonic = time.perf_counter = lambda: _present[-1].now if _present else _real_monotonic()
    time.sleep = lambda seconds: _present[-1].sleep(seconds) if _present else _real_sleep(seconds)


def enter(world: FaultyWorld) -> None:
    """Make a world the present one."""
    _present[:] = [world]


def present() -> FaultyWorld:
    """Return the present world."""
    return _present[-1]


def leave() -> None:
    """Return to real time."""
    _present.clear()
