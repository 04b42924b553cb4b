"""`LivenessMonitor`: decides which role of a run failed first. Events in, a verdict out; no clock, no socket.

The first cause wins. A role that fails because a peer is gone (NetworkError) is only blamed if no better cause shows up
in time: an exit code without a report, or a heartbeat that stops, may come later and explain it. A broken connection is
blamed if neither of its ends has died or fallen silent.

Roles of one group are lost together and may be started again under other names, while the others go on: a death, a
silence or a broken connection among them makes no verdict, but a `Loss`. An error that a role itself raised would be
raised again after a restart; it is a verdict, whatever the group. A role that has reported its result has done its
work: how, and how late, its process ends is noted, and is no failure.

Time during which a role's process is known to be at work, though nothing is heard of it, is no silence; and time during
which it has to wait for a CPU is none in which it could have gone on. So a busy machine is not taken for a lost one.
"""

import signal
from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import CutsetError, NetworkError, ProcessLost
from ..hosts.failure_report import Failure
from ..hosts.process_activity import ProcessActivity
from .membership import Limits, Loss, Member, Suspicion

# Network errors that would come again after a restart: their cause is what is sent, not the connection.
_LASTING = ("E503", "E510", "E513", "E515", "E516", "E550")


_COMPLAINT, _CONNECTION, _EXIT = range(3)  # ranks: a network error, a broken connection, an exit without a report


class LivenessMonitor:
    """Knows every role of a run: who is ready, who has finished, and who was the first to fail.

    The `on_` methods take events, `tick` lets time pass. now: seconds of any steady clock. groups: by role, the group
    with which it may be started again. verdict: the error to raise, once there is one. notes: sentences about what is
    no failure, but that somebody should know.
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
        self._members: dict[str, Member] = {}
        self._in_state: dict[str, dict[str, Member]] = {}  # by state and name: a message must not cost a look at all
        self._suspicions: dict[str, Suspicion] = {}  # by group, "" for roles that are in none
        self._losses: list[Loss] = []
        self.notes: list[str] = []
        self.join(names, now=now, groups=groups)

    def join(self, names: Iterable[str], *, now: float, groups: Mapping[str, str] | None = None) -> None:
        """Add roles whose processes are being started."""
        for name in names:
            self._members[name] = Member(name, (groups or {}).get(name, ""), began=now)
            self._move(self._members[name], "starting")

    @property
    def all_ready(self) -> bool:
        """Whether every role has sent "hello"."""
        return not self._in_state.get("starting")

    @property
    def newcomers(self) -> list[str]:
        """Roles that have sent "hello" and have yet to be told to start."""
        return [m.name for m in self._members_in("ready")]

    @property
    def running(self) -> list[str]:
        """Roles that were told to start and have not finished."""
        return [m.name for m in self._members_in("running")]

    @property
    def statuses(self) -> dict[str, Mapping[str, Any]]:
        """What the running roles said last of how their work goes."""
        return {m.name: m.status for m in self._members_in("running") if m.status is not None}

    @property
    def unfinished(self) -> list[str]:
        """Roles that start or run."""
        return [m.name for state in ("starting", "ready", "running") for m in self._members_in(state)]

    @property
    def directory(self) -> dict[str, str]:
        """The end point of each role, as far as known; without roles that were replaced."""
        return {m.name: m.endpoint for m in self._members.values() if m.endpoint and m.state != "replaced"}

    @property
    def results(self) -> dict[str, Any]:
        """The values that finished roles returned, by name."""
        return {m.name: m.value for m in self._members.values() if m.state in ("finished", "gone")}

    def have_ended(self, names: Iterable[str] | None = None) -> bool:
        """Whether these roles (by default all that were not replaced) have finished and their processes ended."""
        if names is None:
            return not any(members for state, members in self._in_state.items() if state not in ("gone", "replaced"))
        return all(self._members[name].state == "gone" for name in names)

    def is_replaced(self, name: str) -> bool:
        """Whether the role was lost with its group or retired: what it sends no longer counts."""
        return self._members[name].state == "replaced"

    def retire(self, names: Iterable[str]) -> None:
        """These roles are not needed any more: how they end is no failure."""
        for name in names:
            self._drop_suspicions(name)
            self._move(self._members[name], "replaced")

    def take_losses(self) -> list[Loss]:
        """Return the losses since the last call, and clear them."""
        losses, self._losses = self._losses, []
        return losses

    def on_hello(self, name: str, endpoint: str) -> None:
        """The role is ready and listens at `endpoint`."""
        self._members[name].endpoint = endpoint
        self._move(self._members[name], "ready")

    def on_started(self, now: float) -> None:
        """All roles that were ready were told to start; from now on their heartbeats are due."""
        for member in self._members_in("ready"):
            self._move(member, "running")
            member.heard_at = member.spoke_at = member.progress_at = now

    def on_heartbeat(
        self, name: str, now: float, progress: int | str | None, status: Mapping[str, Any] | None = None
    ) -> None:
        """The role lives. progress: anything that changes as its work goes on; None if it reports nothing now."""
        member = self._members[name]
        member.status = status
        member.heard_at = member.spoke_at = now
        member.reports_progress = progress is not None
        if progress is None:
            member.progress_at = now
        elif progress != member.progress:
            member.progress, member.progress_at = progress, now

    def doubtful_roles(self, now: float) -> list[str]:
        """Roles whose `on_activity` matters: they start, are late with a heartbeat, or make no progress."""
        doubt_s = self.limits.heartbeat_s / 4
        late = [m for m in self._members_in("running") if now - min(m.heard_at, m.progress_at) > doubt_s]
        return [m.name for m in (*self._members_in("starting"), *late)]

    def on_activity(self, name: str, activity: ProcessActivity) -> None:
        """The role's process is known to have been at work."""
        member = self._members[name]
        member.heard_at += activity.active_s
        member.spoke_at += activity.waited_s
        member.progress_at += activity.waited_s
        member.began += activity.waited_s

    def on_finished(self, name: str, now: float, value: Any) -> None:
        """The role's work is done with this value; its process ends next, or has just ended."""
        member = self._members[name]
        member.value = value
        member.heard_at = now
        self._move(member, "finished")
        if member.returncode is not None:  # its process ended first
            self._drop_suspicions(name)
            self._end_finished(member)

    def on_failed(self, name: str, now: float, failure: Failure) -> None:
        """The role has reported the error that ended it."""
        self._move(self._members[name], "failed")
        self._drop_suspicions(name)
        error = failure.to_error(name)
        if isinstance(error, NetworkError):
            self._suspect(Suspicion((name,), error, now + self.limits.grace_s, _COMPLAINT))
        else:
            self._decide(error)

    def on_connection_lost(self, name: str, peer: str, now: float, error: NetworkError) -> None:
        """`name` reports that messages between it and `peer` are lost. One of the two may be the launcher itself."""
        ends = tuple(end for end in (name, peer) if end in self._members)
        if any(self._members[end].state != "running" for end in ends):
            return
        self._suspect(Suspicion(ends, error, now + self.limits.grace_s, _CONNECTION, connection=True))

    def on_exited(self, name: str, now: float, returncode: int, *, last_lines: str = "", host_lost: str = "") -> None:
        """The role's process ended. last_lines: the end of its log. host_lost: why its host is lost, if that is why."""
        member = self._members[name]
        member.returncode = returncode
        before = member.state
        if before in ("failed", "replaced"):
            return
        if before == "finished":
            self._end_finished(member)
            return
        self._move(member, "lost")
        log = f"\nlast lines of its log:\n{last_lines.rstrip()}" if last_lines.strip() else ""
        if host_lost:
            facts = f"{host_lost}; {name} was there ({member.last_progress()}){log}"
            self._lose(member.group, ProcessLost("E608", facts, fix="see that it runs, and the network to it"))
            return
        if returncode < 0:
            facts = f"{name} was killed by {_signal_name(-returncode)} ({member.last_progress()}){log}"
            fix = "see `dmesg` for the kernel's out-of-memory killer" if returncode == -signal.SIGKILL else ""
            self._lose(member.group, ProcessLost("E602", facts, fix=fix))
            return
        where = "before it was ready" if before == "starting" else "without a report"
        facts = f"{name} ended with exit code {returncode} {where} ({member.last_progress()}){log}"
        self._suspect(Suspicion((name,), ProcessLost("E603", facts), now + self.limits.grace_s, _EXIT))

    def tick(self, now: float) -> CutsetError | None:
        """Let time pass until `now`, after all events before it. Returns the verdict if there is one."""
        self._check_start(now)
        self._check_heartbeats(now)
        self._check_progress(now)
        for group in sorted(self._suspicions):
            self._check_suspicion(group, now)
        return self.verdict

    def late_exits(self, now: float) -> list[str]:
        """Roles that have delivered their result, but whose processes do not end in time."""
        return [m.name for m in self._members_in("finished") if now - m.heard_at > self.limits.exit_s]

    def silent_roles(self, now: float) -> list[str]:
        """Running roles whose last heartbeat is older than the limit: they would not read a message either."""
        return [m.name for m in self._members_in("running") if now - m.heard_at > self.limits.heartbeat_s]

    def __repr__(self) -> str:
        states = {m.name: m.state for m in self._members.values()}
        return f"LivenessMonitor({states}, verdict={self.verdict!r})"

    def _end_finished(self, member: Member) -> None:
        """The process of a role that has delivered its result ended; note it where its exit code is not 0."""
        self._move(member, "gone")
        if member.returncode:
            how = _signal_name(-member.returncode) if member.returncode < 0 else f"exit code {member.returncode}"
            self.notes.append(
                f"{member.name} had delivered its result when its process ended by {how}; nothing is lost"
            )

    def _decide(self, error: CutsetError) -> None:
        self.verdict = self.verdict or error

    def _lose(self, group: str, error: CutsetError) -> None:
        """The group cannot go on; for roles in no group, the run cannot."""
        if not group:
            self._decide(error)
            return
        members = [m for m in self._members.values() if m.group == group and m.state != "replaced"]
        if not members:
            return
        self._losses.append(Loss(group, error, {m.name: m.progress for m in members}))
        self._suspicions.pop(group, None)
        for member in members:
            self._move(member, "replaced")

    def _suspect(self, suspicion: Suspicion) -> None:
        """Remember a suspicion, unless the group has one already that is as good."""
        group = next((g for name in suspicion.names if (g := self._members[name].group)), "")
        known = self._suspicions.get(group)
        if known is None or known.rank < suspicion.rank:
            self._suspicions[group] = suspicion

    def _check_suspicion(self, group: str, now: float) -> None:
        """Act on a suspicion that is due, unless a silent role may be the cause or an end of the connection is gone."""
        suspicion = self._suspicions[group]
        if now < suspicion.due or self._is_any_overdue(now):
            return
        del self._suspicions[group]
        if suspicion.error.code in _LASTING:
            self._decide(suspicion.error)
        elif not suspicion.connection or all(self._members[name].state == "running" for name in suspicion.names):
            self._lose(group, suspicion.error)

    def _drop_suspicions(self, name: str) -> None:
        """Drop the suspicions of this role, whose end is explained."""
        self._suspicions = {group: s for group, s in self._suspicions.items() if name not in s.names}

    def _move(self, member: Member, state: str) -> None:
        self._in_state.get(member.state, {}).pop(member.name, None)
        member.state = state
        self._in_state.setdefault(state, {})[member.name] = member

    def _members_in(self, state: str) -> list[Member]:
        return list(self._in_state.get(state, {}).values())

    def _is_any_overdue(self, now: float) -> bool:
        """Whether a running role has been silent for so long that it may be lost."""
        return any(now - m.heard_at > self.limits.overdue_s for m in self._members_in("running"))

    def _check_start(self, now: float) -> None:
        late = [m.name for m in self._members_in("starting") if now - m.began > self.limits.start_s]
        if late:
            facts = f"{', '.join(late)} not ready after {self.limits.start_s:g} s"
            self._decide(ProcessLost("E604", facts, fix="see its log; allow more time where the machine is slow"))

    def _check_heartbeats(self, now: float) -> None:
        for member in sorted(self._members_in("running"), key=lambda m: m.heard_at):
            stuck = now - member.spoke_at > self.limits.progress_s  # at work all the time, but never heard of
            if now - member.heard_at > self.limits.heartbeat_s or stuck:
                facts = f"{member.name} stopped answering {now - member.spoke_at:.1f} s ago ({member.last_progress()})"
                fix = "its process is stopped, or its machine is lost or overloaded"
                self._lose(member.group, ProcessLost("E606", facts, fix=fix))

    def _check_progress(self, now: float) -> None:
        for member in sorted(self._members_in("running"), key=lambda m: m.progress_at):
            still_s = now - member.progress_at
            if member.reports_progress and still_s > self.limits.progress_s:
                facts = f"{member.name} lives but is stuck: no progress for {still_s:.0f} s, {member.last_progress()}"
                fix = "see where its log ends; a step that takes longer needs a smaller --batch, or more --machines"
                self._lose(member.group, ProcessLost("E607", facts, fix=fix))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
