"""`RemoteHost`: another machine, to whose agent (agent.py) a stream leads, as that of `ssh USER@ADDRESS ...`.

A thread reads and writes the stream. For the launcher a process there looks like one here: its output is in its log,
and its number and exit code come on a socket.
"""

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Protocol

import msgspec

from ...errors import NetworkError, UsageError
from .agent import ALIVE_S
from .assignment import Assignment
from .file_transfer import AssignmentQueue, FileFetch
from .frames import (
    Alive,
    AssignRole,
    FileFailed,
    FilePiece,
    Frame,
    FrameStream,
    GetFile,
    Greeting,
    HangUp,
    Prepare,
    Ready,
    ReleaseRole,
    RemoveFile,
    RoleEnded,
    RoleOutput,
    RoleStarted,
    SignalRole,
    StartRole,
    StreamEnd,
)
from .host import Role
from .remote_process import RemoteProcess
from .role_process import HostedProcess
from .versions import read_clock, read_versions

AGENT = ("-P", "-u", "-X", "faulthandler", "-m", "cutset.runtime.hosts.agent")  # behind the interpreter
READY_S, LOST_S, END_S = 30.0, 3.0, 5.0  # a host is lost before its roles are in doubt one by one


class AgentStream(Protocol):
    """What leads to an agent. reading, writing: the descriptors to read from and write to."""

    reading: int
    writing: int

    def describe_trouble(self) -> str:
        """Return what was printed at the other end, or is known besides of why no agent answers."""
        ...

    def hang_up(self) -> None:
        """Close both descriptors; the agent, if it is there, then ends."""
        ...

    def end(self, wait_s: float) -> None:
        """Wait for the end of what leads there, so long at most, and end it."""
        ...


class RemoteHost:
    """A machine while its agent is there: it is lost when nothing has come from it for `LOST_S` seconds.

    stream: leads to the agent; it is ended with the host. launcher: the address of this machine that its roles connect
    to, where the agent does not know it itself. Raises UsageError where the agent does not answer or is of other
    versions.

    Attributes:
        ports: at which its roles listen; see `Host`.
        ready: what the agent told of its machine.
        lost: why the host is lost, "" as long as it is not.
        clock_ahead_s: by how much its clock is ahead of the one here, to the time that a message takes.
    """

    def __init__(self, name: str, stream: AgentStream, *, launcher: str = "") -> None:
        self.name = name
        self.lost, self.ports, self.clock_ahead_s = "", "", 0.0
        self._agent = stream
        self._stream = FrameStream(stream.reading, stream.writing)
        self._processes: dict[int, RemoteProcess] = {}
        self._numbers = iter(range(1 << 62))
        self._outgoing = deque[Iterator[Frame]]()
        self._assignments = AssignmentQueue()
        self._fetches: dict[str, FileFetch] = {}  # by path there
        self._fetching: dict[str, threading.Lock] = {}  # one at a time of each path
        self._lock = threading.Lock()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        self._is_ready, self._ending = threading.Event(), False
        self._ready: Ready | None = None
        self._thread = threading.Thread(target=self._run, name=f"cutset-host-{name}", daemon=True)
        self._send(Greeting(read_versions(), launcher))
        self._thread.start()
        try:
            self.ready = self._await_ready()
        except UsageError:
            self.close()
            raise
        self.address = self.ready.address

    @property
    def public_key(self) -> str:
        """The public key of its roles."""
        return self.ready.public

    @property
    def cores(self) -> int:
        """How many cores its roles have."""
        return self.ready.cores

    @property
    def memory_bytes(self) -> int:
        """How much memory its roles have."""
        return self.ready.memory_bytes

    @property
    def folder(self) -> str:
        """The folder of the agent, where its roles have the files of the run."""
        return self.ready.folder

    def start(self, role: Role, log: IO[bytes]) -> RemoteProcess:
        """Start the process of a role; see `Host`."""
        process = RemoteProcess(role.name, self, next(self._numbers), log)
        with self._lock:
            self._processes[process.number] = process
            if self.lost:
                process.theirs.close()
        self._send(StartRole(process.number, role.name, role.threads, role.entry.partition(":")[0]))
        return process

    def prepare(self, threads: int, entry: str) -> None:
        """Have roles with so many threads start quickly; see `Host`."""
        self._send(Prepare(threads, entry.partition(":")[0]))

    def assign(
        self, process: HostedProcess, assignment: Assignment, *, files: Mapping[str, Path], deadline: float
    ) -> None:
        """Hand a process its assignment, to which the agent adds the secret key, behind its files; see `Host`."""
        assert isinstance(process, RemoteProcess)
        frame = AssignRole(process.number, msgspec.msgpack.encode(assignment))
        if not files:
            self._send(frame)
            return
        frames = self._assignments.add(files, frame)
        if frames is not None:
            self._send_all(frames)

    def fetch_file(self, path: str, file: Path, *, timeout_s: float) -> None:
        """Copy a file of the agent's folder to this machine. Raises NetworkError where that cannot be."""
        with self._lock:
            lock = self._fetching.setdefault(path, threading.Lock())
        with lock:
            self._fetch_file(path, file, timeout_s)

    def _fetch_file(self, path: str, file: Path, timeout_s: float) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f"{file.name}.part")
        try:
            with unfinished.open("wb") as opened:
                fetch = self._fetches[path] = FileFetch(opened)
                self._send(GetFile(path))
                if self.lost:
                    fetch.end(self.lost)
                failure = fetch.wait(timeout_s)
                del self._fetches[path]
            if failure:
                facts = f"host {self.name}: {path} could not be copied: {failure}"
                raise NetworkError("E517", facts, fix="check its disk and the network to it")
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)

    def remove_file(self, path: str) -> None:
        """Remove a file of the agent's folder."""
        self._send(RemoveFile(path))

    def close(self) -> None:
        """End the agent, and with it what is left of its roles."""
        if self._ending:
            return
        wait_s, self._ending = 0.0 if self.lost else END_S, True
        self._wake()
        self._thread.join()
        self._agent.end(wait_s)
        for file in (self._wake_reader, self._wake_writer):
            os.close(file)

    def __enter__(self) -> "RemoteHost":
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RemoteHost({self.name} at {self.address}, {self.lost or 'there'})"

    def _await_ready(self) -> Ready:
        self._is_ready.wait(READY_S)
        if self._ready is None:
            why = self.lost.partition(" is lost: ")[2] or f"no agent answered in {READY_S:g} s"
            trouble = self._agent.describe_trouble()
            facts = f"host {self.name} cannot be used: {why}" + (f"; {trouble}" if trouble else "")
            raise UsageError("E290", facts, fix="see that its command runs without a password, and finds cutset there")
        theirs = self._ready.versions
        differ = {name: ours for name, ours in read_versions().items() if theirs.get(name) != ours}
        other = [f"{name} {theirs.get(name)} instead of {ours}" for name, ours in differ.items()]
        if other:
            facts = f"host {self.name} has {', '.join(other)}"
            raise UsageError("E291", facts, fix="install the same versions on all hosts")
        return self._ready

    def _send(self, frame: Frame) -> None:
        self._send_all(iter([frame]))

    def _send_all(self, frames: Iterator[Frame]) -> None:
        with self._lock:
            if not self.lost:
                self._outgoing.append(frames)
        self._wake()

    def _wake(self) -> None:
        """Have the thread look for something to do; does nothing once it has ended."""
        with self._lock, contextlib.suppress(BlockingIOError):  # what it has not read yet wakes it, too
            if not self.lost:
                os.write(self._wake_writer, b"x")

    def _run(self) -> None:
        """Read and write the stream, until the host is lost or `close` is called."""
        heard_at, alive_at = time.monotonic(), 0.0
        try:
            while not self._ending:
                self._wait()
                for frame in self._stream.receive():
                    heard_at = time.monotonic()
                    self._handle(frame)
                now = time.monotonic()
                if self._is_ready.is_set() and now - heard_at > LOST_S:
                    raise StreamEnd(f"nothing has come from it for {now - heard_at:.1f} s")
                if now - alive_at >= ALIVE_S:
                    alive_at = now
                    self._send(Alive())
                self._send_queued()
        except StreamEnd as closed:
            self._lose(str(closed))
        else:
            self._lose("it was closed")
        self._agent.hang_up()

    def _wait(self) -> None:
        poller = select.poll()
        poller.register(self._stream.reading, select.POLLIN)
        poller.register(self._wake_reader, select.POLLIN)
        if self._stream.has_unsent:
            poller.register(self._stream.writing, select.POLLOUT)
        for file, _ in poller.poll(ALIVE_S * 1000):
            if file == self._wake_reader:
                os.read(self._wake_reader, 4096)

    def _send_queued(self) -> None:
        """Send what is queued, files piece by piece, as fast as the other end reads."""
        self._stream.flush()
        while not self._stream.has_unsent:
            with self._lock:
                frames = self._outgoing[0] if self._outgoing else None
            if frames is None:
                return
            frame = next(frames, None)
            with self._lock:
                if frame is None:
                    self._outgoing.popleft()
                elif len(self._outgoing) > 1 and isinstance(frame, FilePiece):
                    self._outgoing.rotate(-1)  # other frames need not wait for a whole file
            if frame is not None:
                self._stream.send(frame)
                self._stream.flush()

    def _handle(self, frame: Frame) -> None:
        match frame:
            case Ready():
                self._ready, self.clock_ahead_s = frame, frame.time_s - read_clock()
                self._is_ready.set()
            case RoleStarted():
                self._report(frame.process, b"%d\n" % frame.pid)
            case RoleOutput():
                process = self._processes.get(frame.process)
                if process is not None:
                    process.write_log(frame.data)
            case RoleEnded():
                process = self._processes.get(frame.process)
                if process is not None and frame.reason:
                    process.write_log(frame.reason.encode())
                self._report(frame.process, b"%s%d\n" % (b"0\n" if frame.reason else b"", frame.code))
            case FilePiece():
                if frame.path in self._fetches:
                    self._fetches[frame.path].take(frame)
            case FileFailed():
                self._note_failure(frame.path, frame.reason)
            case _:
                pass  # alive

    def _report(self, number: int, line: bytes) -> None:
        process = self._processes.get(number)
        if process is not None:
            with contextlib.suppress(OSError):  # released meanwhile
                process.theirs.send(line)

    def _note_failure(self, path: str, reason: str) -> None:
        """End the fetch of a file; what was to go there is missed by roles, whose logs then say why."""
        fetch = self._fetches.get(path)
        if fetch is not None:
            fetch.end(reason)
            return
        for process in list(self._processes.values()):
            process.write_log(f"host {self.name}: {path} could not be written: {reason}\n".encode())

    def _lose(self, why: str) -> None:
        with self._lock:
            self.lost = f"host {self.name} is lost: {why}"
            processes, fetches = list(self._processes.values()), list(self._fetches.values())
        for process in processes:
            process.theirs.close()
        for fetch in fetches:
            fetch.end(self.lost)
        self._is_ready.set()

    def release(self, process: RemoteProcess) -> None:
        """Forget a process that the launcher has done with."""
        with self._lock:
            del self._processes[process.number]
        process.theirs.close()
        self._send(ReleaseRole(process.number))

    def signal(self, process: RemoteProcess, number: int) -> None:
        """Send a signal to a process."""
        self._send(SignalRole(process.number, number))

    def hang_up(self, process: RemoteProcess) -> None:
        """Close the pipe to a process."""
        self._send(HangUp(process.number))
