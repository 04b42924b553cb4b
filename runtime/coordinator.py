"""`Coordinator`: membership and liveness of one run as a pure core - events in, a verdict out; no clock, no socket.

The first cause wins. A role that fails because a peer is gone (NetworkError) is only blamed when no better cause shows
up: an exit code without a report, or a peer that fell silent, may still be on its way to explain it.
"""

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..partition.errors import (
    BadInput,
    CheckpointError,
    CutsetError,
    Diverged,
    Infeasible,
    NetworkError,
    ProcessLost,
    UsageError,
)

_CLASSES: dict[int, type[CutsetError]] = {
    kind.exit_code: kind
    for kind in (UsageError, BadInput, Infeasible, NetworkError, ProcessLost, Diverged, CheckpointError)
}


@dataclass(frozen=True)
class Report:
    """What a role said of its own end. code is empty for an exception outside the tree of errors: a bug."""

    code: str
    exit_code: int
    facts: str
    fix: str
    traceback: str


@dataclass(frozen=True)
class Limits:
    """How long what may take, in seconds.

    start: until every role is ready; beacon: between two beacons; progress: between two changes of a role's progress;
    overdue: a silence that is suspect; grace: the wait for a better cause; exit: the end of a process after its work.
    """

    start_s: float = 60.0
    beacon_s: float = 5.0
    progress_s: float = 120.0
    overdue_s: float = 1.5
    grace_s: float = 1.0
    exit_s: float = 15.0


@dataclass
class _Member:
    """What is known of one role.

    state: "starting", "ready", "running", then "finished" (it said so) and "gone" (its process too), or "failed" (it
    said so) or "lost" (its process ended without a word).
    """

    name: str
    endpoint: str = ""
    state: str = "starting"
    returncode: int | None = None
    value: Any = None
    progress: int | str | None = None
    progress_at: float = 0.0
    heard_at: float = 0.0

    def last_progress(self) -> str:
        return f"its last progress was {self.progress!r}" if self.progress is not None else "it told no progress"


@dataclass(frozen=True)
class _Suspicion:
    """A failure that may be the consequence of another; it becomes the verdict at `due`."""

    name: str
    error: CutsetError
    due: float


class Coordinator:
    """Knows every role of a run, who is ready, who has finished, and who was the first to fail.

    `now` is in seconds of any steady clock. `verdict` is the error to raise, once there is one.
    """

    def __init__(self, names: Iterable[str], *, now: float, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.verdict: CutsetError | None = None
        self._members = {name: _Member(name) for name in names}
        self._began = now
        self._suspicion: _Suspicion | None = None

    @property
    def ready(self) -> bool:
        """Whether every role has said hello."""
        return all(m.state == "ready" for m in self._members.values())

    @property
    def directory(self) -> dict[str, str]:
        """Where each role listens, as far as known."""
        return {m.name: m.endpoint for m in self._members.values() if m.endpoint}

    @property
    def results(self) -> dict[str, Any]:
        """What the finished roles returned."""
        return {m.name: m.value for m in self._members.values() if m.state in ("finished", "gone")}

    def ended(self, names: Iterable[str] | None = None) -> bool:
        """Whether these roles (all by default) have finished and their processes are gone."""
        return all(self._members[name].state == "gone" for name in (self._members if names is None else names))

    def hello(self, name: str, endpoint: str) -> None:
        """The role listens at `endpoint`."""
        self._members[name].endpoint = endpoint
        self._members[name].state = "ready"

    def started(self, now: float) -> None:
        """All were told to start; from now on their beacons are due."""
        for member in self._in("ready"):
            member.state = "running"
            member.heard_at = member.progress_at = now

    def beacon(self, name: str, now: float, progress: int | str | None) -> None:
        """The role lives. progress: anything that changes as its work goes on; None if it does not tell."""
        member = self._members[name]
        member.heard_at = now
        if progress != member.progress:
            member.progress, member.progress_at = progress, now

    def finished(self, name: str, now: float, value: Any) -> None:
        """The role's work is done; its process ends next, or has just ended."""
        member = self._members[name]
        member.value = value
        member.heard_at = now
        member.state = "finished"
        if member.returncode == 0:
            member.state = "gone"
            self._forget(name)

    def failed(self, name: str, now: float, report: Report) -> None:
        """The role raised and said what."""
        self._members[name].state = "failed"
        self._forget(name)
        if not report.code:
            facts = f"{name} raised {report.facts}\n{report.traceback.rstrip()}"
            self._decide(ProcessLost("E605", facts, fix=report.fix))
            return
        facts = report.facts if name in report.facts else f"{name}: {report.facts}"
        error = _CLASSES.get(report.exit_code, CutsetError)(report.code, facts, fix=report.fix)
        error.add_note(f"in {name}:\n{report.traceback.rstrip()}")
        if isinstance(error, NetworkError):
            self._suspect(name, error, now)
        else:
            self._decide(error)

    def exited(self, name: str, now: float, returncode: int, *, last_lines: str = "") -> None:
        """The role's process ended. last_lines: the end of its log."""
        member = self._members[name]
        member.returncode = returncode
        before = member.state
        if before == "failed":
            return
        member.state = "gone" if (before, returncode) == ("finished", 0) else "lost"
        if member.state == "gone":
            return
        log = f"\nlast lines of its log:\n{last_lines.rstrip()}" if last_lines.strip() else ""
        if returncode < 0:
            facts = f"{name} was killed by {_signal(-returncode)} ({member.last_progress()}){log}"
            fix = "see `dmesg` for the kernel's out-of-memory killer" if returncode == -signal.SIGKILL else ""
            self._decide(ProcessLost("E602", facts, fix=fix))
            return
        where = {"starting": "before it was ready", "finished": "after it had finished"}.get(before, "without a word")
        facts = f"{name} ended with exit code {returncode} {where} ({member.last_progress()}){log}"
        self._suspect(name, ProcessLost("E603", facts), now)

    def tick(self, now: float) -> CutsetError | None:
        """Let time pass, after every event before `now` was told; the verdict if there is one."""
        self._check_start(now)
        self._check_beacons(now)
        self._check_progress(now)
        if self._suspicion is not None and now >= self._suspicion.due and not self._overdue(now):
            self._decide(self._suspicion.error)
        return self.verdict

    def silent(self, now: float) -> list[str]:
        """Running roles that have not been heard of for longer than the limit: nothing that is said to them helps."""
        return [m.name for m in self._in("running") if now - m.heard_at > self.limits.beacon_s]

    def __repr__(self) -> str:
        states = {m.name: m.state for m in self._members.values()}
        return f"Coordinator({states}, verdict={self.verdict!r})"

    def _decide(self, error: CutsetError) -> None:
        self.verdict = self.verdict or error

    def _suspect(self, name: str, error: CutsetError, now: float) -> None:
        """Remember the first suspicion; an exit without a report is a better one than a NetworkError."""
        known = self._suspicion
        if known is None or (isinstance(known.error, NetworkError) and not isinstance(error, NetworkError)):
            self._suspicion = _Suspicion(name, error, now + self.limits.grace_s)

    def _forget(self, name: str) -> None:
        """Drop a suspicion of this role: it has explained itself."""
        if self._suspicion is not None and self._suspicion.name == name:
            self._suspicion = None

    def _in(self, *states: str) -> list[_Member]:
        return [m for m in self._members.values() if m.state in states]

    def _overdue(self, now: float) -> bool:
        """Whether a running role has been silent for so long that it may be lost."""
        return any(now - m.heard_at > self.limits.overdue_s for m in self._in("running"))

    def _check_start(self, now: float) -> None:
        late = [m.name for m in self._in("starting")]
        if late and now - self._began > self.limits.start_s:
            facts = f"{', '.join(late)} not ready after {self.limits.start_s:g} s"
            self._decide(ProcessLost("E604", facts, fix="see its log; allow more time where the machine is slow"))

    def _check_beacons(self, now: float) -> None:
        for member in sorted(self._in("running"), key=lambda m: m.heard_at):
            if now - member.heard_at > self.limits.beacon_s:
                facts = f"{member.name} stopped answering {now - member.heard_at:.1f} s ago ({member.last_progress()})"
                self._decide(
                    ProcessLost("E606", facts, fix="its process is stopped, or its machine is lost or overloaded")
                )
        for member in self._in("finished"):
            if now - member.heard_at > self.limits.exit_s:
                facts = f"{member.name} finished {now - member.heard_at:.0f} s ago, but its process does not end"
                self._decide(ProcessLost("E608", facts, fix="look for threads that it left running"))

    def _check_progress(self, now: float) -> None:
        for member in sorted(self._in("running"), key=lambda m: m.progress_at):
            still_s = now - member.progress_at
            if member.progress is not None and still_s > self.limits.progress_s:
                facts = f"{member.name} lives but is stuck: no progress for {still_s:.0f} s, {member.last_progress()}"
                self._decide(ProcessLost("E607", facts, fix="raise the limit where a step may take longer than this"))


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
