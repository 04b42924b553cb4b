"""`OtherWork`: what else than this process and those it starts had the cores of this machine for a while."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ...runtime.hosts.versions import read_cores

PROC = Path("/proc")
WORTH_SAYING = 0.1  # part of all cores; some always goes to the system
_USER, _NICE, _SYSTEM, _IRQ, _SOFT_IRQ, _STEAL = 0, 1, 2, 5, 6, 7  # columns of a core in /proc/stat (proc(5))
_PARENT, _TIMES = 1, slice(11, 15)  # in /proc/PID/stat, after the name; the latter with children that were waited for


@dataclass(frozen=True)
class OtherWork:
    """How many cores other programs had, and how many the host of a virtual machine gave to others; of `cores`."""

    programs: float
    stolen: float
    cores: int

    @property
    def is_worth_saying(self) -> bool:
        """Whether it made what ran slower, by more than what a system always does."""
        return self.programs + self.stolen > WORTH_SAYING * self.cores

    def describe(self) -> str:
        """Say how much it was."""
        named = [(self.programs, "other programs"), (self.stolen, "other guests of this virtual machine's host")]
        shares = [f"{who} had {cores:.1f}" for cores, who in named if cores > WORTH_SAYING * self.cores / 2]
        return f"{' and '.join(shares)} of {self.cores} cores"


@dataclass(frozen=True)
class CoresUsed:
    """What the cores that this process may use have done so far, in seconds: for all, for us, and for other guests.

    cores: their numbers. at_s: when that was, by the monotonic clock.
    """

    cores: frozenset[int]
    at_s: float
    busy_s: float
    own_s: float
    stolen_s: float

    @classmethod
    def read(cls) -> Self | None:
        """Return the times up to now; None where nothing is known, or the cores are not ours alone."""
        cores = frozenset(os.sched_getaffinity(0))
        if read_cores() < len(cores):  # a container, with a part of the time of the cores that it sees
            return None
        try:
            lines = (PROC / "stat").read_text(encoding="ascii").splitlines()
        except OSError:  # as other systems than Linux have none
            return None
        rows = {name: columns for name, *columns in map(str.split, lines)}
        times = [list(map(int, rows.get(f"cpu{core}", []))) for core in cores]
        if any(len(columns) <= _STEAL for columns in times):
            return None
        tick = os.sysconf("SC_CLK_TCK")
        busy = sum(columns[i] for columns in times for i in (_USER, _NICE, _SYSTEM, _IRQ, _SOFT_IRQ))
        stolen = sum(columns[_STEAL] for columns in times)
        own = _read_own_ticks()
        return None if own is None else cls(cores, time.monotonic(), busy / tick, own / tick, stolen / tick)

    def find_other_work(self) -> OtherWork | None:
        """Return what else the cores did since then."""
        now = CoresUsed.read()
        if now is None or now.cores != self.cores or now.at_s - self.at_s < 1.0:  # ticks are hundredths of a second
            return None
        seconds = now.at_s - self.at_s
        others = now.busy_s - self.busy_s - (now.own_s - self.own_s)
        return OtherWork(max(0.0, others) / seconds, (now.stolen_s - self.stolen_s) / seconds, read_cores())


def _read_own_ticks() -> int | None:
    """Return the time that this process and all that came of it took; None where it has another number there."""
    parents, ticks = dict[int, int](), dict[int, int]()
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile, or is somebody else's, and hidden
                continue
            parents[int(folder.name)], ticks[int(folder.name)] = int(fields[_PARENT]), sum(map(int, fields[_TIMES]))

    if os.getpid() not in parents:
        return None

    def is_ours(process: int) -> bool:
        while process in parents and process != os.getpid():
            process = parents[process]
        return process == os.getpid()

    return sum(taken for process, taken in ticks.items() if is_ours(process))
