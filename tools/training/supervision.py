"""What the supervisors of all methods share: running the roles of a job, and the limit and record of their restarts.

A supervisor answers the messages of a run's roles and says what replaces those that are lost. Roles that only work
together form a group and are restarted together: "replica 1" has one role for each machine, "shard 0" is one role.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from ...errors import CutsetError
from ...ps.checkpoint.write_checkpoint import WAIT_FOR_ROOM_S
from ...runtime.channel.message import Message
from ...runtime.hosts.host import Role
from ...runtime.launcher.launcher import Launcher, Route
from ...runtime.launcher.membership import Loss
from ..hosts.file_relay import FileRelay
from ..hosts.held_losses import HeldLosses
from ..hosts.run_hosts import RunHosts
from ..job.job import Job
from ..job.process_specs import unique_job_name
from ..run_folder import INITIAL, LOGS
from ..run_listener import ALONE, MAX_LINKED, EvaluationReport, LossReport, RolesReport, RunListener, StepReport

STATUS_S = 1.0  # between two reports on all roles; of more than FEW_ROLES they are rarer, as they are longer
FEW_ROLES = 8
OnNotice = Callable[[str], None]  # a sentence for the user


class RoleSupervisor(Protocol):
    """Decides what happens in a run; `run_roles` calls it."""

    def roles(self) -> list[Role]:
        """Return the roles that the run starts with."""

    def mark_started(self) -> None:
        """Note that all roles run."""

    def handle(self, message: Message, launcher: Launcher) -> None:
        """Take a message of a role into account, and send what follows from it."""

    def restart(self, loss: Loss) -> list[Role]:
        """Return the roles that replace a lost group; raise the error of the loss where nothing may replace it."""

    def watch(self, launcher: Launcher) -> None:
        """Do what is due without a message; called again and again."""

    def count_leases(self) -> int | None:
        """Return how many batches are leased and not yet computed; None where none are leased."""


def run_roles(
    job: Job,
    supervisor: RoleSupervisor,
    hosts: RunHosts,
    listener: RunListener,
    on_notice: OnNotice,
    route: Route | None,
) -> dict[str, Any]:
    """Start the roles of a supervisor and let it answer them until all have finished; return their results by name."""
    relay = FileRelay(hosts, job.out, on_notice=on_notice)

    def hand_over(messages: Iterable[Message], launcher: Launcher) -> None:
        for message in messages:
            if message.body.get("confirm") and any(role.name == message.sender for role in launcher.roles):
                body = {"kind": message.kind, "failure": message.body.get("failure", "")}
                launcher.send(message.sender, Message("kept", body=body))
            supervisor.handle(message, launcher)

    held = HeldLosses(hosts, limit_s=job.config.host_wait, on_notice=on_notice)

    def restart(loss: Loss) -> list[Role]:
        hosts.note_loss(loss.group, loss.error)
        listener.on_machine_lost(LossReport(loss.group, loss.error.facts.partition("\n")[0]))
        return [] if held.add_if_needed(loss) else supervisor.restart(loss)

    reporter = _RolesReporter(job.method.name, listener, supervisor.count_leases)

    def watch(launcher: Launcher) -> None:
        reporter.report_due(launcher)
        for host in hosts.take_found():
            launcher.join(host)
        for joined in launcher.take_joined_hosts():
            hosts.admit(joined)
        hand_over(relay.take_ready(), launcher)
        launcher.on_hold = held.must_wait()
        if not launcher.on_hold:
            for loss in held.take():
                launcher.add(supervisor.restart(loss))
            supervisor.watch(launcher)

    launching = Launcher(
        supervisor.roles(),
        job=unique_job_name(),
        folder=job.out / LOGS,
        restart=restart,
        watch=watch,
        on_notice=on_notice,
        hosts=hosts.hosts,
        address=hosts.launcher_address,
        route=route,
    )
    with launching as launcher, relay:
        launcher.start()
        supervisor.mark_started()
        for message in launcher.events():
            relay.add(message)
            hand_over(relay.take_ready(), launcher)
        hand_over(relay.take_rest(), launcher)
        return dict(launcher.results)


class _RolesReporter:
    """Tells a listener about once a second what all roles of a run say, more rarely where there are many."""

    def __init__(self, run: str, listener: RunListener, count_leases: Callable[[], int | None] = lambda: None) -> None:
        self._run, self._listener, self._count_leases, self._next_s = run, listener, count_leases, 0.0

    def report_due(self, launcher: Launcher) -> None:
        if (now := time.monotonic()) >= self._next_s:
            roles = shorten_statuses(launcher.statuses)
            self._next_s = now + STATUS_S * max(1.0, len(roles) / FEW_ROLES)
            self._listener.on_roles(RolesReport(self._run, roles, self._count_leases()))


def shorten_statuses(statuses: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return what roles say, by name; of many with the bytes to all peers together, which would be most of it."""
    if len(statuses) <= MAX_LINKED:
        return dict(sorted(statuses.items()))
    return {
        name: {**status, "links": {"others": sum(status["links"].values())}} if status.get("links") else status
        for name, status in sorted(statuses.items())
    }


def run_one_process(job: Job, role: Role, hosts: RunHosts, listener: RunListener) -> dict[str, Any]:
    """Run the baseline, a single role, and return its result, with the "threads" that it had."""
    placed = hosts.place(role, hosts.first, files=[INITIAL])
    address = hosts.launcher_address
    launching = Launcher(
        [placed],
        job=unique_job_name(),
        folder=job.out / LOGS,
        hosts=hosts.hosts,
        address=address,
        watch=_RolesReporter(ALONE, listener).report_due,
    )
    with launching as launcher:
        launcher.start()
        for message in launcher.events():
            body = message.body
            if message.kind == "progress":
                step, (samples, seconds) = min(body["step"], body["steps"]), (body["samples"], body["seconds"])
                listener.on_step(StepReport(ALONE, step, body["steps"], body["loss"], samples, seconds))
            elif message.kind == "evaluated":
                listener.on_evaluate(EvaluationReport.from_point(ALONE, body))
        result: dict[str, Any] = launcher.results[role.name]
    return {**result, "threads": role.threads}


def describe_wait_for_room(name: str, reason: str) -> str:
    """Return a sentence about a role that cannot write what training has come to."""
    within = f"make room within {WAIT_FOR_ROOM_S / 60:g} minutes"
    return f"{name} waits to write the final checkpoint: {reason}; {within}"


class RestartLog:
    """Counts how often each group was lost up to a limit, and records why and for how long each group was missing.

    Every record is plain data: {"role", "step", "code", "reason", "seconds"}. role: the group; step: with which a
    replica continued, None for other groups; seconds: until the group worked again, None while it does not.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._losses, self._incarnations = Counter[str](), Counter[str]()
        self._missing: dict[str, tuple[float, dict[str, Any]]] = {}  # since when, and the record to complete
        self.records: list[dict[str, Any]] = []

    def incarnation(self, group: str) -> int:
        """Return how often a group was restarted: since it was lost, or had to go back with one that was."""
        return self._incarnations[group]

    @property
    def any_missing(self) -> bool:
        """Whether some group was started and does not work yet."""
        return bool(self._missing)

    def is_missing(self, group: str) -> bool:
        """Return whether a group was started and does not work yet."""
        return group in self._missing

    def restart(self, group: str, error: CutsetError, *, step: int | None = None) -> str:
        """Count a restart of a lost group and return the reason; raise the error if the group reached the limit."""
        if self._losses[group] == self._limit:
            raise self.final_error(group, error)
        self._losses[group] += 1
        self._incarnations[group] += 1
        reason = error.facts.partition("\n")[0]
        record = {"role": group, "step": step, "code": error.code, "reason": reason, "seconds": None}
        self.records.append(record)
        self.expect(group, record)
        return reason

    def follow(self, group: str) -> None:
        """Count a restart of a group that was not lost, but has to go back with one that was; it has no record."""
        self._incarnations[group] += 1
        self.expect(group, {})

    def expect(self, group: str, record: dict[str, Any]) -> None:
        """Measure from now on how long a group takes to work, for the "seconds" of a record."""
        self._missing[group] = time.monotonic(), record

    def mark_working(self, group: str) -> dict[str, Any] | None:
        """Complete the record of a group that was missing and works now; return that record, if there is one."""
        since, record = self._missing.pop(group, (0.0, None))
        if record is not None:
            record["seconds"] = time.monotonic() - since
        return record

    def give_up(self, group: str) -> None:
        """Stop waiting for a group: it is lost again, or no longer needed."""
        self._missing.pop(group, None)

    def final_error(self, group: str, error: CutsetError) -> CutsetError:
        """Return the error that ends the run, which says how often the group was restarted before."""
        count = self._losses[group]
        if not count:
            return error
        facts, *log = error.facts.split("\n", 1)
        often = "once" if count == 1 else f"{count} times"
        facts = f"{facts}; {group} was restarted {often} before, the most that --restarts allows"
        return type(error)(error.code, "\n".join([facts, *log]), fix=error.fix)
