"""`ActivityProbe`: whether a process that says nothing is at work, waits for a CPU or a disk, or does nothing at all.

Heartbeats come late where a machine is overloaded, or where native code holds the interpreter's lock; the kernel knows
that such a process lives. One that is stopped, or waits for what never comes, neither runs nor asks for a CPU.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = 100.0  # of the times in /proc, on every architecture that Linux runs on (USER_HZ)
_AT_WORK = ("R", "D")  # states of threads: running or waiting for a CPU, and waiting for a disk
_STATE, _USER_TICKS, _SYSTEM_TICKS = 0, 11, 12  # fields behind the name; see proc_pid_stat(5)


class ProcessActivity(NamedTuple):
    """What a process did between two samples: how many seconds it was at work, and how many of them it had to wait."""

    active_s: float
    waited_s: float


class ActivityProbe:
    """Samples the threads of one process. now: seconds of any steady clock."""

    def __init__(self, pid: int, now: float) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._sampled_at = now
        self._ran_s = self._read()[0]

    def sample(self, now: float) -> ProcessActivity:
        """Return what the process did since the last sample; nothing where the system does not tell."""
        before, passed_s = self._ran_s, now - self._sampled_at
        self._ran_s, at_work = self._read()
        self._sampled_at = now
        ran_s = max(0.0, self._ran_s - before)
        if at_work:
            return ProcessActivity(passed_s, max(0.0, passed_s - ran_s))
        return ProcessActivity(min(ran_s, passed_s), 0.0)

    def _read(self) -> tuple[float, bool]:
        """Return the seconds that all threads have run so far, and whether any of them is at work."""
        ticks, at_work = 0, False
        try:
            for task in self._tasks.iterdir():
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
                at_work |= fields[_STATE] in _AT_WORK
        except (OSError, IndexError):  # the process or a thread has just ended, or there is no such folder
            return ticks / _TICKS_PER_S, False
        return ticks / _TICKS_PER_S, at_work

    def __repr__(self) -> str:
        return f"ActivityProbe({self._tasks}, ran {self._ran_s:.2f} s)"


class ActivityProbes:
    """The probes of those processes that somebody is in doubt about, by name."""

    def __init__(self) -> None:
        self._probes: dict[str, ActivityProbe] = {}

    def sample(self, pids: Mapping[str, int], now: float) -> dict[str, ProcessActivity]:
        """Return what these processes did since they were sampled last, those that were sampled before."""
        known = {name: probe for name, probe in self._probes.items() if name in pids}
        self._probes = {name: known.get(name) or ActivityProbe(pid, now) for name, pid in pids.items()}
        return {name: probe.sample(now) for name, probe in known.items()}

    def __repr__(self) -> str:
        return f"ActivityProbes({sorted(self._probes)})"
