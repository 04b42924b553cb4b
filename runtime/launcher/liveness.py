"""`Coordinator`: membership and liveness of one run as a pure core - events in, a verdict out; no clock, no socket.

The first cause wins. A role that fails because a peer is gone (NetworkError) is only blamed when no better cause shows
up: an exit code without a report, or a peer that fell silent, may still be on its way to explain it. A broken link is
blamed, with both its ends, when neither of them has ended or fallen silent.

Roles of one group are lost together and may be started again under other names, while the others go on: a death, a
silence or a broken link among them is no verdict, but a `Loss`. What a role itself raised would be raised again; that
is a verdict whatever the group.
"""

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import CutsetError, NetworkError, ProcessLost
from .failure_report import Failure

# Errors that a role would meet again if it was started again: of what is sent, not of the way.
_LASTING = ("E503", "E510", "E513", "E515", "E516", "E550")


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


@dataclass(frozen=True)
class Loss:
    """A group of roles that has to be ended and started again. progress: the last that each of them told."""

    group: str
    error: CutsetError
    progress: dict[str, int | str | None]


@dataclass
class _Member:
    """What is known of one role.

    state: "starting", "ready", "running", then "finished" (it said so) and "gone" (its process too), or "failed" (it
    said so) or "lost" (its process ended without a word), or "replaced" (its group was lost, or it was dismissed).
    """

    name: str
    group: str = ""
    began: float = 0.0
    endpoint: str = ""
    state: str = "starting"
    returncode: int | None = None
    value: Any = None
    progress: int | str | None = None  # the last that it told
    telling: bool = False  # whether it says now how it gets on
    progress_at: float = 0.0
    heard_at: float = 0.0

    def last_progress(self) -> str:
        return f"its last progress was {self.progress!r}" if self.progress is not None else "it told no progress"


@dataclass(frozen=True)
class _Suspicion:
    """A failure that may be the consequence of another; it is believed at `due`.

    names: who may still explain it. rank: a better cause has a higher one. link: it holds only while both ends run.
    """

    names: tuple[str, ...]
    error: CutsetError
    due: float
    rank: int
    link: bool = False


_COMPLAINT, _LINK, _EXIT = range(3)  # ranks: a role that waits in vain, a broken link, an exit without a word


class Coordinator:
    """Knows every role of a run, who is ready, who has finished, and who was the first to fail.

    `now` is in seconds of any steady clock. groups: of the roles that may be started again. `verdict` is the error to
    raise, once there is one.
    """

    def __init__(
        self,
        names: Iterable[str],
        *,
        now: float,
        limits: Limits | None = None,
        groups: Mapping[str, str] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.verdict: CutsetError | None = None
        self._members: dict[str, _Member] = {}
        self._suspicions: dict[str, _Suspicion] = {}  # by group, "" for roles that are in none
        self._losses: list[Loss] = []
        self.join(names, now=now, groups=groups)

    def join(self, names: Iterable[str], *, now: float, groups: Mapping[str, str] | None = None) -> None:
        """These roles are being started."""
        self._members |= {name: _Member(name, (groups or {}).get(name, ""), began=now) for name in names}

    @property
    def ready(self) -> bool:
        """Whether every role has said hello."""
        return not self._in("starting")

    @property
    def newcomers(self) -> list[str]:
        """Roles that have said hello and were not told to start."""
        return [m.name for m in self._in("ready")]

    @property
    def running(self) -> list[str]:
        """Roles at work."""
        return [m.name for m in self._in("running")]

    @property
    def directory(self) -> dict[str, str]:
        """Where each role listens, as far as known; without those that were replaced."""
        return {m.name: m.endpoint for m in self._members.values() if m.endpoint and m.state != "replaced"}

    @property
    def results(self) -> dict[str, Any]:
        """What the finished roles returned."""
        return {m.name: m.value for m in self._members.values() if m.state in ("finished", "gone")}

    def ended(self, names: Iterable[str] | None = None) -> bool:
        """Whether these roles (all by default, but for the replaced) have finished and their processes are gone."""
        if names is None:
            names = [m.name for m in self._members.values() if m.state != "replaced"]
        return all(self._members[name].state == "gone" for name in names)

    def replaced(self, name: str) -> bool:
        """Whether the role was given up with its group: what it says no longer counts."""
        return self._members[name].state == "replaced"

    def dismiss(self, names: Iterable[str]) -> None:
        """These roles are not needed any more: how they end does not count."""
        for name in names:
            self._forget(name)
            self._members[name].state = "replaced"

    def take_losses(self) -> list[Loss]:
        """The groups that were lost since this was asked last."""
        losses, self._losses = self._losses, []
        return losses

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
        member.telling = progress is not None
        if progress is None:
            member.progress_at = now
        elif progress != member.progress:
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

    def failed(self, name: str, now: float, failure: Failure) -> None:
        """The role raised and said what."""
        self._members[name].state = "failed"
        self._forget(name)
        error = failure.error(name)
        if isinstance(error, NetworkError):
            self._suspect(_Suspicion((name,), error, now + self.limits.grace_s, _COMPLAINT))
        else:
            self._decide(error)

    def broke(self, name: str, peer: str, now: float, error: NetworkError) -> None:
        """`name` says that messages between it and `peer` are lost. One of the two may be the launcher itself."""
        ends = tuple(end for end in (name, peer) if end in self._members)
        if any(self._members[end].state != "running" for end in ends):
            return
        self._suspect(_Suspicion(ends, error, now + self.limits.grace_s, _LINK, link=True))

    def exited(self, name: str, now: float, returncode: int, *, last_lines: str = "") -> None:
        """The role's process ended. last_lines: the end of its log."""
        member = self._members[name]
        member.returncode = returncode
        before = member.state
        if before in ("failed", "replaced"):
            return
        # What has said its result, and is to be restarted if lost, is done with, however its process ended.
        member.state = "gone" if before == "finished" and (returncode == 0 or member.group) else "lost"
        if member.state == "gone":
            return
        log = f"\nlast lines of its log:\n{last_lines.rstrip()}" if last_lines.strip() else ""
        if returncode < 0:
            facts = f"{name} was killed by {_signal(-returncode)} ({member.last_progress()}){log}"
            fix = "see `dmesg` for the kernel's out-of-memory killer" if returncode == -signal.SIGKILL else ""
            self._lose(member.group, ProcessLost("E602", facts, fix=fix))
            return
        where = {"starting": "before it was ready", "finished": "after it had finished"}.get(before, "without a word")
        facts = f"{name} ended with exit code {returncode} {where} ({member.last_progress()}){log}"
        self._suspect(_Suspicion((name,), ProcessLost("E603", facts), now + self.limits.grace_s, _EXIT))

    def tick(self, now: float) -> CutsetError | None:
        """Let time pass, after every event before `now` was told; the verdict if there is one."""
        self._check_start(now)
        self._check_beacons(now)
        self._check_progress(now)
        for group in sorted(self._suspicions):
            self._check_suspicion(group, now)
        return self.verdict

    def silent(self, now: float) -> list[str]:
        """Running roles that have not been heard of for longer than the limit: nothing that is said to them helps."""
        return [m.name for m in self._in("running") if now - m.heard_at > self.limits.beacon_s]

    def __repr__(self) -> str:
        states = {m.name: m.state for m in self._members.values()}
        return f"Coordinator({states}, verdict={self.verdict!r})"

    def _decide(self, error: CutsetError) -> None:
        self.verdict = self.verdict or error

    def _lose(self, group: str, error: CutsetError) -> None:
        """The group cannot go on; without a group, the run cannot."""
        if not group:
            self._decide(error)
            return
        members = [m for m in self._members.values() if m.group == group and m.state != "replaced"]
        if not members:
            return
        self._losses.append(Loss(group, error, {m.name: m.progress for m in members}))
        self._suspicions.pop(group, None)
        for member in members:
            member.state = "replaced"

    def _suspect(self, suspicion: _Suspicion) -> None:
        """Remember the first suspicion of a group, or the better one."""
        group = next((g for name in suspicion.names if (g := self._members[name].group)), "")
        known = self._suspicions.get(group)
        if known is None or known.rank < suspicion.rank:
            self._suspicions[group] = suspicion

    def _check_suspicion(self, group: str, now: float) -> None:
        """Believe it when it is due, unless a role is silent that may be the cause, or an end of the link is gone."""
        suspicion = self._suspicions[group]
        if now < suspicion.due or self._overdue(now):
            return
        del self._suspicions[group]
        if suspicion.error.code in _LASTING:
            self._decide(suspicion.error)
        elif not suspicion.link or all(self._members[name].state == "running" for name in suspicion.names):
            self._lose(group, suspicion.error)

    def _forget(self, name: str) -> None:
        """Drop a suspicion of this role: it has explained itself."""
        self._suspicions = {group: s for group, s in self._suspicions.items() if name not in s.names}

    def _in(self, *states: str) -> list[_Member]:
        return [m for m in self._members.values() if m.state in states]

    def _overdue(self, now: float) -> bool:
        """Whether a running role has been silent for so long that it may be lost."""
        return any(now - m.heard_at > self.limits.overdue_s for m in self._in("running"))

    def _check_start(self, now: float) -> None:
        late = [m.name for m in self._in("starting") if now - m.began > self.limits.start_s]
        if late:
            facts = f"{', '.join(late)} not ready after {self.limits.start_s:g} s"
            self._decide(ProcessLost("E604", facts, fix="see its log; allow more time where the machine is slow"))

    def _check_beacons(self, now: float) -> None:
        for member in sorted(self._in("running"), key=lambda m: m.heard_at):
            if now - member.heard_at > self.limits.beacon_s:
                facts = f"{member.name} stopped answering {now - member.heard_at:.1f} s ago ({member.last_progress()})"
                fix = "its process is stopped, or its machine is lost or overloaded"
                self._lose(member.group, ProcessLost("E606", facts, fix=fix))
        for member in self._in("finished"):
            if now - member.heard_at > self.limits.exit_s:
                facts = f"{member.name} finished {now - member.heard_at:.0f} s ago, but its process does not end"
                self._decide(ProcessLost("E608", facts, fix="look for threads that it left running"))

    def _check_progress(self, now: float) -> None:
        for member in sorted(self._in("running"), key=lambda m: m.progress_at):
            still_s = now - member.progress_at
            if member.telling and still_s > self.limits.progress_s:
                facts = f"{member.name} lives but is stuck: no progress for {still_s:.0f} s, {member.last_progress()}"
                fix = "raise the limit where a step may take longer than this"
                self._lose(member.group, ProcessLost("E607", facts, fix=fix))


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
