"""`Launcher`: starts the processes of all roles, watches over them, and ends them all, whatever happens.

A group of roles that was lost is ended, and whoever started the run says what takes its place.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ...errors import NetworkError
from .assignment import LAUNCHER, Assignment, write
from .liveness import Coordinator, Limits, Loss
from .failure_report import Failure
from ..channel.keys import make_keys
from ..channel.message import Message
from .role_process import RoleProcess, await_ends, end_all, environment
from ..channel.zmq_channel import DIRECTORY, LOST, SIDE, ZmqChannel

TICK_S = 0.25
BEACON_INTERVAL_S = 0.5
STOP_S = 2.0
_BURST = 10_000  # messages that are read before the clock is looked at again


@dataclass(frozen=True)
class Role:
    """One process. entry: "package.module:function", called as `entry(channel, setup, beacon)`; setup: plain data.

    threads: for torch; serves: it runs until it is told to stop, which happens once all others have finished.
    host: the address that it listens on, the launcher's own where nothing is said. prefix: a command that runs the
    process elsewhere, as ("ip", "netns", "exec", NAME) does in a network name space. group: of roles that are lost
    together and may be started again; without one, the loss of this role ends the run.
    """

    name: str
    entry: str
    setup: Any = None
    threads: int = 1
    serves: bool = False
    host: str = ""
    prefix: tuple[str, ...] = ()
    group: str = ""


Renew = Callable[[Loss], Sequence[Role]]
Watch = Callable[["Launcher"], object]
Route = Callable[[str, str, str], str]


class Launcher:
    """Runs `roles` as processes, while entered: `start` them, follow their `events`, `stop` them or let them finish.

    folder: where each role's log is kept; without one the logs are temporary. environ: the environment the roles get,
    this process's own by default. limits: how long what may take; `start` sets its own. renew: the roles that take the
    place of a group that was lost, in the same group and under names of `spares`; it raises the error of the loss where
    there shall be none, as happens without it. watch: called again and again while `events` are followed, several times
    a second; it may `add` and `dismiss` roles. route: what `source` is told of where `target` listens, given
    (source, target, end point), where that is not the end point itself.
    """

    def __init__(
        self,
        roles: Sequence[Role],
        *,
        job: str,
        folder: Path | None = None,
        host: str = "127.0.0.1",
        limits: Limits | None = None,
        environ: Mapping[str, str] | None = None,
        spares: Sequence[str] = (),
        renew: Renew | None = None,
        watch: Watch | None = None,
        route: Route | None = None,
    ) -> None:
        _check_names([*(role.name for role in roles), *spares])
        self.roles = tuple(roles)
        self.job = job
        self._folder = folder
        self._limits = limits or Limits()
        self._environ = os.environ if environ is None else environ
        self._keys = make_keys([LAUNCHER, *(role.name for role in roles), *spares])
        self._renew = renew
        self._watch = watch
        self._route = route
        self._processes: list[RoleProcess] = []
        self._watched: list[RoleProcess] = []
        self._gone: list[str] = []  # roles that have ended, to whom others may still send
        self._stopped = False
        self._servers_told = False
        self._coordinator = Coordinator([], now=0.0)
        self._channel = ZmqChannel(LAUNCHER, job, self._keys[LAUNCHER], host=host)
        self._host = host

    @property
    def results(self) -> dict[str, Any]:
        """What each role that has finished returned."""
        return self._coordinator.results

    @property
    def pids(self) -> dict[str, int]:
        """The process of each role."""
        return {process.name: process.pid for process in self._processes}

    def start(self, *, timeout_s: float = 60.0) -> None:
        """Start every process and introduce them to each other; ProcessLost where one is not ready in time."""
        limits = replace(self._limits, start_s=timeout_s)
        self._coordinator = Coordinator([], now=time.monotonic(), limits=limits)
        self._spawn(self.roles)
        while not self._coordinator.ready:
            self._turn()
            for error in (self._coordinator.verdict, *(loss.error for loss in self._coordinator.take_losses())):
                if error is not None:
                    raise error
        self._begin()

    def _spawn(self, roles: Sequence[Role]) -> None:
        """Start the processes of these roles, and hand each what it has to know."""
        now = time.monotonic()
        timeout_s = self._coordinator.limits.start_s
        self._coordinator.join([r.name for r in roles], now=now, groups={r.name: r.group for r in roles})
        processes = []
        for role in roles:
            process = RoleProcess(
                role.name,
                environment=environment(self._environ, threads=role.threads),
                log=self._log(role.name),
                prefix=role.prefix,
            )
            processes.append(process)
            self._processes.append(process)
            self._watched.append(process)
        for role, process in zip(roles, processes, strict=True):
            write(self._assignment(role, timeout_s), process.stdin, deadline=now + timeout_s)

    def _begin(self) -> None:
        """Tell the roles that are ready to start, and those at work where they listen."""
        newcomers, directory = self._coordinator.newcomers, self._coordinator.directory
        self._channel.introduce(self._as_seen_by(LAUNCHER, directory))
        for name in newcomers:
            body = {"directory": self._as_seen_by(name, directory), "gone": self._gone}
            self._channel.send(name, Message("start", body=body))
        for name in self._coordinator.running:
            here = self._as_seen_by(name, {newcomer: directory[newcomer] for newcomer in newcomers})
            self._channel.send(name, Message(DIRECTORY, body={"here": here, "gone": []}))
        self._coordinator.started(time.monotonic())

    def _as_seen_by(self, source: str, directory: Mapping[str, str]) -> dict[str, str]:
        """Where `source` finds these targets."""
        return {target: self._way(source, target, endpoint) for target, endpoint in directory.items()}

    def _way(self, source: str, target: str, endpoint: str) -> str:
        return endpoint if self._route is None else self._route(source, target, endpoint)

    def events(self) -> Iterator[Message]:
        """What the roles send to "launcher", and "finished" with the value of each, until all have ended.

        The first failure of a role is raised: ProcessLost where it died or hangs or raised an exception outside the
        tree of errors, with its traceback; else its own error, of its own class and code. A group that can be started
        again is, and nothing is raised.
        """
        while not self._stopped and not self._coordinator.ended():
            yield from self._turn()
            if self._coordinator.verdict is not None:
                raise self._coordinator.verdict
            for loss in self._coordinator.take_losses():
                self._replace(loss)
            if self._watch is not None:
                self._watch(self)
            if self._coordinator.newcomers and self._coordinator.ready:
                self._begin()
            if not self._servers_told and self._coordinator.ended(r.name for r in self.roles if not r.serves):
                self._servers_told = True
                self._tell([role.name for role in self.roles if role.serves], "all others have finished")

    def _replace(self, loss: Loss) -> None:
        """End what is left of a group, tell the others who is gone, and start what takes its place."""
        self._remove(list(loss.progress))
        if self._renew is None:
            raise loss.error
        self.add(self._renew(loss))

    def add(self, roles: Sequence[Role]) -> None:
        """Start more roles, whose names are `spares`, while the others are at work."""
        self.roles = (*self.roles, *roles)
        self._spawn(roles)

    def dismiss(self, names: Sequence[str]) -> None:
        """End roles that are not needed any more, whatever they do; nothing that they said from now on counts."""
        self._coordinator.dismiss(names)
        self._remove(names)

    def _remove(self, gone: Sequence[str]) -> None:
        """End roles whose loss is known, and tell the others that they are gone."""
        for process in [process for process in self._processes if process.name in gone]:
            process.kill()
            self._processes.remove(process)
            self._watched = [other for other in self._watched if other is not process]
        self._gone += gone
        for name in gone:
            self._channel.forget(name)
        for name in self._coordinator.running:
            self._channel.send(name, Message(DIRECTORY, body={"here": {}, "gone": list(gone)}))
        self.roles = tuple(role for role in self.roles if role.name not in gone)

    def run(self) -> list[Any]:
        """Start all roles and wait until they have ended: what each returned, in the order of the roles.

        For roles that tell nothing on the way; errors as of `start` and `events`.
        """
        self.start()
        for _ in self.events():
            pass
        return [self.results[role.name] for role in self.roles]

    def send(self, peer: str, message: Message) -> None:
        """Send a message to a role."""
        self._channel.send(peer, message)

    def stop(self, why: str) -> None:
        """End every role: by a message, after two seconds by SIGTERM, after one more by SIGKILL. `events` ends, too.

        A role that has stopped answering is killed at once.
        """
        self._stopped = True
        silent = self._coordinator.silent(time.monotonic())
        try:
            for process in self._processes:
                if process.name in silent:
                    process.signal(signal.SIGKILL)
            self._tell([process.name for process in self._processes if process.returncode() is None], why)
            await_ends(self._processes, STOP_S)
        finally:
            end_all(self._processes)

    def statistics(self) -> dict[str, dict[str, int]]:
        """Messages and tensor bytes to and from each role."""
        return self._channel.statistics()

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop("the run ended" if error is None else f"the run ended: {error}")
        finally:
            self._channel.close()

    def __repr__(self) -> str:
        return f"Launcher({self.job}, {self._processes}, {self._coordinator})"

    def _log(self, name: str) -> IO[bytes]:
        if self._folder is None:
            return tempfile.TemporaryFile()
        self._folder.mkdir(parents=True, exist_ok=True)
        return (self._folder / f"{name.replace(' ', '-')}.log").open("w+b")

    def _assignment(self, role: Role, timeout_s: float) -> Assignment:
        return Assignment(
            name=role.name,
            job=self.job,
            entry=role.entry,
            setup=role.setup,
            keys=self._keys[role.name],
            launcher=self._way(role.name, LAUNCHER, self._channel.endpoint),
            host=role.host or self._host,
            path=sys.path,
            start_timeout_s=timeout_s,
            beacon_interval_s=BEACON_INTERVAL_S,
        )

    def _turn(self) -> list[Message]:
        """Wait for something to happen and tell the coordinator; the messages that are the caller's."""
        ends = [process.end_file for process in self._watched if process.end_file is not None]
        self._channel.wait(TICK_S, files=ends)
        messages = self._read()
        for process in [p for p in self._watched if p.returncode() is not None]:
            messages += self._read()  # what it sent before it ended comes first
            self._watched.remove(process)
            code = process.returncode()
            assert code is not None
            self._coordinator.exited(process.name, time.monotonic(), code, last_lines=process.last_lines())
        self._coordinator.tick(time.monotonic())
        return messages

    def _read(self) -> list[Message]:
        messages: list[Message] = []
        for _ in range(_BURST):
            message = self._channel.poll()
            if message is None:
                break
            if self._take(message):
                messages.append(message)
        return messages

    def _take(self, message: Message) -> bool:
        """Tell the coordinator what concerns it; whether the message is the caller's, too."""
        name, now, body = message.sender.partition(SIDE)[0], time.monotonic(), message.body
        if name != LAUNCHER and self._coordinator.replaced(name):
            return False
        match message.kind:
            case "hello":
                self._coordinator.hello(name, body["endpoint"])
            case "beacon":
                self._coordinator.beacon(name, now, body["progress"])
            case "failed":
                self._coordinator.failed(name, now, Failure(**body))
            case kind if kind == LOST:
                error = NetworkError(body["code"], body["facts"], fix=body["fix"])
                self._coordinator.broke(name, body["peer"], now, error)
            case "finished":
                self._coordinator.finished(name, now, body["value"])
                return True
            case _:
                return True
        return False

    def _tell(self, names: Sequence[str], why: str) -> None:
        """Tell roles to stop; those that nobody has heard of yet lose their pipe, at which they end."""
        directory = self._coordinator.directory
        self._channel.introduce(self._as_seen_by(LAUNCHER, directory))
        for process in self._processes:
            if process.name in names and process.name in directory:
                self._channel.send(process.name, Message("stop", body={"why": why}))
            elif process.name in names:
                process.hang_up()


def _check_names(names: list[str]) -> None:
    bad = [name for name in names if name == LAUNCHER or SIDE in name or "/" in name or names.count(name) > 1]
    if bad or not names:
        raise ValueError(
            f"roles need names of their own, without {SIDE!r} and '/', and not {LAUNCHER!r}: {bad or names}"
        )
