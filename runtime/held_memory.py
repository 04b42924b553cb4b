"""`HeldMemory`: gives the system back what a process has freed, and malloc holds.

What is freed leaves holes, into which what comes later does not fit: the more so, the less steps are alike in the order
in which their messages arrive.
"""

import ctypes
import os
from pathlib import Path

STEPS_WATCHED = 8  # of so many one: a look takes some ten microseconds
MAX_GROWTH = 1.05  # of what a process holds, since memory was given back last; to fault it in anew takes some time


class HeldMemory:
    """Watches, step by step, how much memory a process holds, and gives back what is free where that has grown."""

    def __init__(self) -> None:
        self._steps, self._packed = 0, 0

    def end_step(self) -> None:
        """Take note that a step has ended, with as much in use as any."""
        self._steps += 1
        if self._steps & (self._steps - 1) == 0:  # after 1, 2, 4, 8 steps: holes grow for a while in every run
            self._give_back()
        elif not self._packed:
            self._packed = read_resident_bytes()
        elif self._steps % STEPS_WATCHED == 0 and read_resident_bytes() > MAX_GROWTH * self._packed:
            self._give_back()

    def _give_back(self) -> None:
        return_free_memory()
        self._packed = 0


def read_resident_bytes() -> int:
    """Return the memory that this process holds now, 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def return_free_memory() -> None:
    """Give the system what this process has freed, and what malloc keeps otherwise: after a large copy, gigabytes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)
