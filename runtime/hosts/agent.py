"""`Agent`: starts roles on a machine for a launcher on another one, to which a stream of bytes leads, as that of ssh.

It makes the pair of keys of its roles: the secret one never travels. What its roles write lies in a folder of its own,
which goes with it. It ends with the stream, or when the stream has been silent for long; and its roles with it.
"""

import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec
import zmq

from .assignment import Assignment, write_assignment
from .file_transfer import read_pieces
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
from .leftovers import remove_after_end
from .role_process import ForkServers, RoleProcess
from .versions import read_clock, read_cores, read_memory, read_versions

CODE = "code"  # the folder in the agent's for modules that roles import
ALIVE_S, SILENCE_S = 0.5, 20.0
_ASSIGN_S = 60.0
_OUTPUT_BYTES = 1 << 16  # as much as a pipe holds


@dataclass
class _Started:
    process: RoleProcess
    output: IO[bytes]
    announced: bool = False
    ended: bool = False
    released: bool = False


class Agent:
    """Serves one launcher. folder: where files come and go. hold: an open file that all its processes are to hold."""

    def __init__(self, stream: FrameStream, folder: Path, *, hold: int | None = None) -> None:
        self._stream, self._folder = stream, folder
        public, secret = zmq.curve_keypair()
        self._public, self._secret = public.decode(), secret.decode()
        self._servers = ForkServers(hold=hold)
        self._roles: dict[int, _Started] = {}
        self._leaving: list[Iterator[Frame]] = []  # files that are being sent
        self._heard_at = self._alive_at = time.monotonic()

    def serve(self) -> None:
        """Do what the launcher says, until the stream ends or is silent."""
        try:
            while time.monotonic() - self._heard_at < SILENCE_S:
                self._wait()
                self._send_news()
                for frame in self._stream.receive():
                    self._heard_at = time.monotonic()
                    self._handle(frame)
        except StreamEnd:
            pass
        finally:
            for started in self._roles.values():
                started.process.kill()
            self._servers.close()

    def _wait(self) -> None:
        poller = select.poll()
        poller.register(self._stream.reading, select.POLLIN)
        if self._stream.has_unsent or self._leaving:
            poller.register(self._stream.writing, select.POLLOUT)
        for started in self._roles.values():
            if self._stream.has_unsent:  # or else what is printed would pile up here
                break
            if not started.ended:
                poller.register(started.process.end_file, select.POLLIN)
            if not started.output.closed:
                poller.register(started.output, select.POLLIN)
        poller.poll(ALIVE_S * 1000)

    def _send_news(self) -> None:
        """Send what roles have printed and how they ended, the next piece of a file, and that this agent is alive."""
        self._stream.flush()
        if self._stream.has_unsent:
            return
        for number, started in list(self._roles.items()):
            self._send_output(number, started)
            self._send_state(number, started)
            if started.released and (started.ended or not started.announced):
                started.process.kill()
                started.output.close()
                del self._roles[number]
        if self._leaving:
            piece = next(self._leaving[0], None)
            if piece is None:
                self._leaving.pop(0)
            else:
                self._stream.send(piece)
        if time.monotonic() - self._alive_at >= ALIVE_S:
            self._alive_at = time.monotonic()
            self._stream.send(Alive())
        self._stream.flush()

    def _send_output(self, number: int, started: _Started) -> None:
        """Send what a role has printed; one that prints all the time keeps nobody else waiting."""
        if started.output.closed:
            return
        try:
            data = os.read(started.output.fileno(), _OUTPUT_BYTES)
        except BlockingIOError:
            return
        if data:
            self._stream.send(RoleOutput(number, data))
        else:
            started.output.close()

    def _send_state(self, number: int, started: _Started) -> None:
        pid, code = started.process.pid, started.process.returncode()
        if pid is not None and not started.announced:
            started.announced = True
            self._stream.send(RoleStarted(number, pid))
        if code is not None and not started.ended:
            started.ended = True
            self._send_output(number, started)  # what it printed last: a pipe holds no more
            self._stream.send(RoleEnded(number, code, "" if started.announced else started.process.last_lines()))

    def _handle(self, frame: Frame) -> None:
        match frame:
            case Greeting():
                self._stream.send(self._describe_machine(frame.launcher))
            case StartRole():
                self._start(frame)
            case Prepare():
                self._servers.prepare(frame.threads, frame.module)
            case AssignRole():
                self._assign(frame)
            case SignalRole() | HangUp() | ReleaseRole():
                if frame.process in self._roles:
                    self._end(self._roles[frame.process], frame)
            case FilePiece():
                self._write(frame)
            case GetFile():
                self._leaving.append(self._read(frame.path))
            case RemoveFile():
                self._remove(frame.path)
            case _:
                pass  # alive

    def _describe_machine(self, launcher: str) -> Ready:
        address, launcher = find_addresses(launcher, os.environ)
        return Ready(
            public=self._public,
            versions=read_versions(),
            cores=read_cores(),
            memory_bytes=read_memory(),
            folder=str(self._folder),
            free_bytes=shutil.disk_usage(self._folder).free,
            time_s=read_clock(),
            address=address,
            launcher=launcher,
        )

    def _start(self, frame: StartRole) -> None:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        log = os.fdopen(writing, "wb", buffering=0)
        process = self._servers.start(frame.name, log=log, threads=frame.threads, module=frame.module)
        log.close()
        self._roles[frame.process] = _Started(process, os.fdopen(reading, "rb", buffering=0))

    def _end(self, started: _Started, frame: SignalRole | HangUp | ReleaseRole) -> None:
        match frame:
            case SignalRole():
                started.process.signal(frame.number)
            case HangUp():
                started.process.hang_up()
            case ReleaseRole():
                started.released = True
                started.process.signal(signal.SIGKILL)

    def _assign(self, frame: AssignRole) -> None:
        started = self._roles.get(frame.process)
        if started is None or started.released or started.process.stdin < 0:
            return  # it was ended while its files were on their way
        given = msgspec.msgpack.decode(frame.assignment, type=Assignment)
        keys = msgspec.structs.replace(given.keys, public=self._public, secret=self._secret)
        assignment = msgspec.structs.replace(given, keys=keys, path=[str(self._folder / CODE), *sys.path])
        # The process may have to wait for its server, and this agent has to say meanwhile that it is alive.
        stdin, deadline = os.dup(started.process.stdin), time.monotonic() + _ASSIGN_S
        threading.Thread(target=_write_and_close, args=(assignment, stdin, deadline), daemon=True).start()

    def _locate(self, path: str) -> Path:
        """Return a path within the folder. Raises ValueError for one that leads out of it."""
        located = (self._folder / path).resolve()
        if not located.is_relative_to(self._folder.resolve()):
            raise ValueError(f"{path!r} is not in the folder of the run")
        return located

    def _write(self, piece: FilePiece) -> None:
        try:
            path = self._locate(piece.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(f"{path.name}.part")
            with unfinished.open("r+b" if piece.offset else "wb") as file:
                file.seek(piece.offset)
                file.write(piece.data)
            if piece.last:
                unfinished.replace(path)
        except (OSError, ValueError) as error:
            self._stream.send(FileFailed(piece.path, str(error)))

    def _remove(self, path: str) -> None:
        try:
            self._locate(path).unlink(missing_ok=True)
        except (OSError, ValueError) as error:
            self._stream.send(FileFailed(path, str(error)))

    def _read(self, path: str) -> Iterator[Frame]:
        try:
            yield from read_pieces(self._locate(path), path)
        except (OSError, ValueError) as error:
            yield FileFailed(path, str(error))


def find_addresses(launcher: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the address of this machine for others, and that of the launcher, "" where they are not known.

    launcher: the address that it has stated itself. Else sshd tells both, and srun that from which it was started.
    """
    if not launcher and "SSH_CONNECTION" in environ:
        remote, _, local, _ = (environ["SSH_CONNECTION"].split() + [""] * 4)[:4]
        return local, remote
    launcher = launcher or environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
    if not launcher:
        return "", ""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((launcher, 9))  # sends nothing, but chooses the card that leads there
            return str(way.getsockname()[0]), launcher
    except OSError:
        return "", launcher


def _write_and_close(assignment: Assignment, stdin: int, deadline: float) -> None:
    try:
        write_assignment(assignment, stdin, deadline=deadline)
    finally:
        os.close(stdin)


def main() -> int:
    """Serve the launcher at the other end of standard input and output. Returns the exit code."""
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # what anybody prints is no frame
    os.close(nothing)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        folder = Path(tempfile.mkdtemp(prefix="cutset-"))
    except OSError as error:
        sys.stderr.write(f"no folder can be made for what roles write: {error.strerror or error}\n")
        return 1
    try:
        Agent(FrameStream(reading, writing), folder, hold=remove_after_end(folder)).serve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
