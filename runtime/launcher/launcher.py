"""`Launcher`: starts the processes of all roles, follows them, and ends them all, whatever happens.

What the roles send and how their processes end becomes events of a `LivenessMonitor` (liveness.py), which decides who
failed. A group of roles that was lost is ended, and the caller says which roles take its place.
"""

import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from ...errors import NetworkError
from ..channel.channel import CONNECTION_LOST, KEYS_KNOWN, make_directory
from ..channel.message import LAUNCHER, Message
from ..channel.zmq_channel import SIDE, ZmqChannel
from ..hosts.failure_report import Failure
from ..hosts.host import Host, LocalHost, Role
from ..hosts.process_activity import ActivityProbes
from ..hosts.role_process import HostedProcess, await_ends, end_all
from .host_registry import HostRegistry
from .liveness import LivenessMonitor
from .membership import Limits, Loss, check_names
from .process_ends import ProcessEnds

TICK_S = 0.25
STOP_S = 2.0  # from the message to stop to SIGTERM
_BURST = 10_000  # messages to read before the clock is checked again

RestartGroup = Callable[[Loss], Sequence[Role]]
Watch = Callable[["Launcher"], object]
Route = Callable[[str, str, str], str]


class Launcher:
    """Runs `roles` as processes, while entered: `start` them, follow their `events`, `stop` them or let them finish.

    folder: where each role's log is kept; without one the logs are temporary. hosts: on which they run, by default this
    machine. address: on which the launcher listens, by default that of the first host. limits: how long things may
    take; `start` sets its own for the start.

    restart: given a `Loss`, returns the roles that take the place of the lost group, in the same group and under new
    names, or raises the error of the loss; without it, every loss is raised. watch: called several times a second while
    `events` are followed; it may `add` and `stop_roles`. on_notice: called with a sentence where a process that had
    delivered its result did not end, or ended badly, and nothing is lost. route: given (source, target, end point of
    the target), returns the end point at which `source` is to reach `target`; by default the target's own.

    Attributes:
        on_hold: set while roles have yet to take the place of lost ones, however few are left.
    """

    def __init__(
        self,
        roles: Sequence[Role],
        *,
        job: str,
        folder: Path | None = None,
        hosts: Sequence[Host] = (),
        address: str = "",
        limits: Limits | None = None,
        restart: RestartGroup | None = None,
        watch: Watch | None = None,
        on_notice: Callable[[str], object] = lambda sentence: None,
        route: Route | None = None,
    ) -> None:
        check_names([role.name for role in roles])
        self.roles = tuple(roles)
        self.job = job
        self._folder = folder
        self._limits = limits or Limits()
        own = [LocalHost(address=address or "127.0.0.1")] if not hosts else []
        self._own_hosts: list[Host] = [*own]
        self._hosts = HostRegistry([*own, *hosts])
        self._restart, self._watch, self._on_notice, self._route = restart, watch, on_notice, route
        self._processes: dict[str, HostedProcess] = {}
        self._next_check = 0.0
        self._activity_probes = ActivityProbes()
        self.on_hold = False
        self._ended_roles: list[str] = []  # roles that have ended, to whom others may still send
        self._stopped = False
        self._servers_stopped = False
        self._monitor = LivenessMonitor([], now=0.0)
        address = address or self._hosts.first.address
        self._channel = ZmqChannel(LAUNCHER, job, self._hosts.keys(LAUNCHER), host=address)
        self._ends = ProcessEnds()

    @property
    def statuses(self) -> dict[str, Mapping[str, Any]]:
        """What each role that runs said last of how its work goes, by name; see `RoleProgress`."""
        return self._monitor.statuses

    @property
    def results(self) -> dict[str, Any]:
        """The value that each finished role returned, by name."""
        return self._monitor.results

    @property
    def pids(self) -> dict[str, int]:
        """The process number of each role, by name, as far as they are known."""
        return {process.name: pid for process in self._processes.values() if (pid := process.pid) is not None}

    @property
    def unheard(self) -> list[str]:
        """Roles that have not said yet where they listen."""
        return [role.name for role in self.roles if role.name not in self._monitor.directory]

    def start(self, *, timeout_s: float = 60.0) -> None:
        """Start every process and introduce them to each other; ProcessLost where one is not ready in time."""
        limits = replace(self._limits, start_s=timeout_s)
        self._monitor = LivenessMonitor([], now=time.monotonic(), limits=limits)
        self._spawn(self.roles)
        while not self._monitor.all_ready:
            self._poll()
            for error in (self._monitor.verdict, *(loss.error for loss in self._monitor.take_losses())):
                if error is not None:
                    raise error
        self._start_newcomers()

    def _spawn(self, roles: Sequence[Role]) -> None:
        """Start the processes of these roles and write each its assignment."""
        now = time.monotonic()
        timeout_s = self._monitor.limits.start_s
        self._monitor.join([r.name for r in roles], now=now, groups={r.name: r.group for r in roles})
        self._hosts.register(roles)
        self._channel.introduce({}, key_owners=self._hosts.key_owners)
        processes = []
        for role in roles:
            process = self._hosts.host_of(role).start(role, self._open_log(role.name))
            processes.append(process)
            self._processes[role.name] = process
            self._ends.add(process)
        for role, process in zip(roles, processes, strict=True):
            launcher = self._endpoints_for(role.name, {LAUNCHER: self._channel.endpoint})[LAUNCHER]
            assignment = self._hosts.make_assignment(role, job=self.job, launcher=launcher, start_timeout_s=timeout_s)
            self._hosts.host_of(role).assign(process, assignment, files=role.files, deadline=now + timeout_s)

    def _start_newcomers(self) -> None:
        """Tell the roles that are ready to start, and the running ones where those listen."""
        newcomers, directory = self._monitor.newcomers, self._monitor.directory
        self._channel.introduce(self._endpoints_for(LAUNCHER, directory))
        for name in newcomers:
            endpoints = self._endpoints_for(name, directory)
            body = {"directory": endpoints, "key_owners": self._hosts.key_owners, "gone": self._ended_roles}
            self._channel.send(name, Message("start", body=body))
            self._send_keys(name)
        joined, owners = ({new: known[new] for new in newcomers} for known in (directory, self._hosts.key_owners))
        for name in self._monitor.running:
            self._channel.send(name, make_directory(joined=self._endpoints_for(name, joined), key_owners=owners))
        self._monitor.on_started(time.monotonic())

    def _send_keys(self, name: str) -> None:
        """Tell a role the keys of hosts that have joined since it was started."""
        keys = self._hosts.unknown_keys(name)
        if keys:
            self._channel.send(name, make_directory(keys=keys))

    def _endpoints_for(self, source: str, directory: Mapping[str, str]) -> dict[str, str]:
        """The end points at which `source` reaches these targets."""
        route = self._route
        return dict(directory) if route is None else {to: route(source, to, there) for to, there in directory.items()}

    def events(self) -> Iterator[Message]:
        """Yield what the roles send to "launcher", and "finished" with the value of each, until all have ended.

        The first failure of a role is raised: ProcessLost where it died, hangs, or raised an exception outside the tree
        of errors, with its traceback; else its own error, of its own class and code. A lost group that can be started
        again is restarted, and nothing is raised.
        """
        while not self._stopped and (self.on_hold or not self._monitor.have_ended()):
            yield from self._poll()
            if self._monitor.verdict is not None:
                raise self._monitor.verdict
            for loss in self._monitor.take_losses():
                self._replace(loss)
            if self._watch is not None:
                self._watch(self)
            if self._monitor.newcomers and self._monitor.all_ready:
                self._start_newcomers()
            if self.on_hold or self._servers_stopped:
                continue
            if self._monitor.have_ended(role.name for role in self.roles if not role.serves):
                self._servers_stopped = True
                self._send_stop([role.name for role in self.roles if role.serves], "all others have finished")

    def _replace(self, loss: Loss) -> None:
        """End what is left of a group, tell the others who has ended, and start what takes its place."""
        self._remove(list(loss.progress))
        if self._restart is None:
            raise loss.error
        self.add(self._restart(loss))

    def add(self, roles: Sequence[Role]) -> None:
        """Start more roles, under names that none has had, while the others run."""
        check_names([*self._hosts.key_owners, *(role.name for role in roles)])
        self.roles = (*self.roles, *roles)
        self._spawn(roles)

    def join(self, host: Host) -> None:
        """Let in a host with a key of its own while roles run; once all know of it, `take_joined_hosts` returns it."""
        self._hosts.join(host, self._monitor.unfinished)
        for name in self._monitor.running:
            self._send_keys(name)

    def take_joined_hosts(self) -> list[Host]:
        """Return the hosts on which roles may be started from now on, each once."""
        return self._hosts.take_joined()

    def stop_roles(self, names: Sequence[str]) -> None:
        """End roles that are not needed any more, whatever they do; from now on nothing that they send counts."""
        self._monitor.retire(names)
        self._remove(names)

    def _remove(self, names: Sequence[str]) -> None:
        """Kill these roles, and tell the others that they have ended."""
        for process in [self._processes.pop(name) for name in names if name in self._processes]:
            self._ends.discard(process)
            process.kill()
        self._ended_roles += names
        self._hosts.forget(names)
        for name in names:
            self._channel.forget(name)
        gone = make_directory(gone=names)
        for name in self._monitor.running:
            self._channel.send(name, gone)
        self.roles = tuple(role for role in self.roles if role.name not in names)

    def run(self) -> list[Any]:
        """Start all roles, wait until they have ended, and return their values in order; raises as `events` does."""
        self.start()
        for _ in self.events():
            pass
        return [self.results[role.name] for role in self.roles]

    def send(self, peer: str, message: Message) -> None:
        """Send a message to a role."""
        self._channel.send(peer, message)

    def stop(self, why: str) -> None:
        """End every role: by a message, after two seconds by SIGTERM, after one more by SIGKILL. `events` ends, too.

        A role whose heartbeat has stopped is killed at once. why: the reason that roles report.
        """
        self._stopped = True
        processes = list(self._processes.values())
        try:
            for name in self._monitor.silent_roles(time.monotonic()):
                if name in self._processes:
                    self._processes[name].signal(signal.SIGKILL)
            self._send_stop([process.name for process in processes if process.returncode() is None], why)
            await_ends(processes, STOP_S)
        finally:
            self._processes.clear()
            end_all(processes)

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.stop("the run ended" if error is None else f"the run ended: {error}")
        finally:
            for host in self._own_hosts:
                host.close()
            self._ends.close()
            self._channel.close()

    def __repr__(self) -> str:
        return f"Launcher({self.job}, {list(self._processes.values())}, {self._monitor})"

    def _open_log(self, name: str) -> IO[bytes]:
        if self._folder is None:
            return tempfile.TemporaryFile()
        self._folder.mkdir(parents=True, exist_ok=True)
        return (self._folder / f"{name.replace(' ', '-')}.log").open("w+b")

    def _poll(self) -> list[Message]:
        """Wait for messages and ends of processes, and pass them to the monitor. Returns the caller's messages."""
        self._channel.wait(TICK_S, files=[self._ends.fileno()])
        messages = self._read()
        for process in self._ends.take_ended():
            messages += self._read()  # what it sent before it ended comes first
            code = process.returncode()
            assert code is not None
            last_lines, host_lost = process.last_lines(), process.host_lost
            self._monitor.on_exited(process.name, time.monotonic(), code, last_lines=last_lines, host_lost=host_lost)
        now = time.monotonic()
        if now >= self._next_check:  # looks at all roles; there may be thousands of messages in that time
            self._next_check = now + TICK_S / 2
            self._check_liveness(now)
        while self._monitor.notes:
            self._on_notice(self._monitor.notes.pop(0))
        return messages

    def _check_liveness(self, now: float) -> None:
        """Have the monitor look for roles that are silent, stuck or late."""
        doubtful = [self._processes[n] for n in self._monitor.doubtful_roles(now) if n in self._processes]
        pids = {process.name: pid for process in doubtful if (pid := process.local_pid) is not None}
        for name, activity in self._activity_probes.sample(pids, now).items():
            self._monitor.on_activity(name, activity)
        self._monitor.tick(now)
        for name in self._monitor.late_exits(now):
            if name in self._processes:
                self._processes[name].signal(signal.SIGKILL)  # it has delivered its result

    def _read(self) -> list[Message]:
        messages: list[Message] = []
        for _ in range(_BURST):
            message = self._channel.poll()
            if message is None:
                break
            if self._handle(message):
                messages.append(message)
        return messages

    def _handle(self, message: Message) -> bool:
        """Pass a message to the monitor if it concerns liveness; return whether it is for the caller, too."""
        name, now, body = message.sender.partition(SIDE)[0], time.monotonic(), message.body
        if name != LAUNCHER and self._monitor.is_replaced(name):
            return False
        match message.kind:
            case "hello":
                self._monitor.on_hello(name, body["endpoint"])
            case "heartbeat":
                self._monitor.on_heartbeat(name, now, body["progress"], body["status"])
            case "failed":
                self._monitor.on_failed(name, now, Failure(**body))
            case kind if kind == CONNECTION_LOST:
                error = NetworkError(body["code"], body["facts"], fix=body["fix"])
                self._monitor.on_connection_lost(name, body["peer"], now, error)
            case kind if kind == KEYS_KNOWN:
                self._hosts.confirm(name, body["owners"])
            case "finished":
                self._hosts.forget([name])
                self._monitor.on_finished(name, now, body["value"])
                return True
            case _:
                return True
        return False

    def _send_stop(self, names: Sequence[str], why: str) -> None:
        """Send "stop" to these roles; those that have not said where they listen lose their pipe, at which they end."""
        directory = self._monitor.directory
        self._channel.introduce(self._endpoints_for(LAUNCHER, directory))
        for name in names:
            if name in directory:
                self._channel.send(name, Message("stop", body={"why": why}))
            elif name in self._processes:
                self._processes[name].hang_up()
