"""`HostedProcess`: the process of one role and its log; `RoleProcess` is one here, which `ForkServers` starts.

It runs in a session of its own, so that Ctrl-C reaches only the launcher.
"""

import contextlib
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO

PROCESS_TITLE = "cutset role"  # of a role in the list of processes, with its name behind it
LAST_LINES = 20
TERM_S = 1.0  # from SIGTERM to SIGKILL
_TAIL_BYTES = 8192
REPRODUCIBLE = "AUTO"  # value of MKL_CBWR; see `role_environment`
SPINS = "10000"  # value of GOMP_SPINCOUNT, some tenths of a millisecond; see `role_environment`
BLAS_SLEEPS = {"OPENBLAS_THREAD_TIMEOUT": "4"}  # numpy's threads sleep at once: else they spin, from the import on
HUGE_PAGES = "glibc.malloc.hugetlb=1"  # of GLIBC_TUNABLES: madvise for what malloc takes; see `role_environment`
_SERVER_EXIT_S = 5.0  # from closing a server's socket to its end
SET_BY_TORCH = {"TORCHINDUCTOR_CACHE_DIR"}  # variables that it sets itself where it traces a model
READY = b"ready"  # what a server says once it has imported everything
KILL_S = 5.0  # from killing a role to the report of it
_PACKAGE = __package__.partition(".")[0]
_COMMAND = (sys.executable, "-P", "-u", "-X", "faulthandler", "-m", "cutset.runtime.hosts.fork_server")


def role_environment(base: Mapping[str, str], *, threads: int) -> dict[str, str]:
    """The environment of a role with so many threads, made from the launcher's.

    Bits: MKL chooses among kernels by how the operands are aligned in memory, so on some processors (AMD Zen) the last
    bit of a product depends on where malloc happened to put a tensor. In its mode of conditional numerical
    reproducibility (MKL_CBWR) the same operation gives the same bits at any address. AUTO takes the fastest code path
    of the processor. A setting of the user's is kept.

    Speed: OpenMP teams of several processes that spin for long would starve each other; but where threads sleep at
    once, or before the next operator has begun, a step takes several times as long on a virtual machine, whose cores
    wake up slowly.
    glibc would return large buffers to the kernel and fault them in again at every message; these settings make it keep
    them. It also asks for huge pages, with which an update goes through memory faster; tunables of the user's
    are kept.
    """
    return {
        "MKL_CBWR": REPRODUCIBLE,
        **BLAS_SLEEPS,
        "GOMP_SPINCOUNT": SPINS,  # with one thread, too: who measures the machine makes steps with all cores as well
        **base,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
        "MALLOC_ARENA_MAX": "1",
        "GLIBC_TUNABLES": ":".join(filter(None, (HUGE_PAGES, base.get("GLIBC_TUNABLES")))),  # the last one counts
    }


class ForkServers:
    """Starts the processes of roles, as forks of servers (fork_server.py) that have torch imported already.

    environ: what `role_environment` is made from, by default this process's own environment. prefix: a command that
    runs them. hold: an open file that they and all roles are to hold. The first role with some number of threads starts
    the server for these. `close` ends all servers, and roles that still run with them.
    """

    def __init__(
        self, *, environ: Mapping[str, str] | None = None, prefix: Sequence[str] = (), hold: int | None = None
    ) -> None:
        self._environ = os.environ if environ is None else environ
        self._prefix = prefix
        self._hold = () if hold is None else (hold,)
        self._servers: dict[int, _ServerProcess] = {}

    def start(self, name: str, *, log: IO[bytes], threads: int, module: str = "") -> "RoleProcess":
        """Start a role with that many threads, whose output goes to `log`.

        module: what the role will import, which the server imports if it is of this package.
        """
        return RoleProcess(name, self.prepare(threads, module), log)

    def prepare(self, threads: int, module: str = "") -> "_ServerProcess":
        """Return the server of roles with that many threads; start it if it is not there. module: as of `start`.

        One that no role is a fork of yet gives way to another where the environment has changed since it was started.
        """
        environment = role_environment(self._environ, threads=threads)
        server = self._servers.get(threads)
        if server is not None and (server.has_ended() or not server.suits(environment)):
            server.close()
            server = None
        if server is None:
            modules = [module] if module.partition(".")[0] == _PACKAGE else []
            server = self._servers[threads] = _ServerProcess(environment, self._prefix, modules, self._hold)
        return server

    def await_imports(self) -> None:
        """Wait until the servers have imported what they were started for, and leave the cores to others."""
        for server in self._servers.values():
            server.await_imports()

    def close(self) -> None:
        """End the servers."""
        for server in self._servers.values():
            server.hang_up()  # all of them, before the first is waited for
        while self._servers:
            self._servers.popitem()[1].close()

    def __repr__(self) -> str:
        return f"ForkServers({list(self._servers)})"


class _ServerProcess:
    def __init__(
        self, environment: Mapping[str, str], prefix: Sequence[str], modules: Sequence[str], hold: Sequence[int]
    ) -> None:
        self._environment, self._is_used = environment, False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, closed by `close`
        with theirs:
            self._process = subprocess.Popen(
                (*prefix, *_COMMAND, *modules),
                stdin=theirs.fileno(),
                stdout=self.output,
                stderr=subprocess.STDOUT,
                env={**environment, "SPT_NOENV": "1"},  # the title of a process is not to overwrite its environment
                start_new_session=True,
                pass_fds=hold,
            )

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Whether it has this environment, or roles already."""
        changed = dict(self._environment.items() ^ environment.items())
        return self._is_used or not changed.keys() - SET_BY_TORCH

    def await_imports(self) -> None:
        """Wait until it has imported everything, or has ended."""
        if not self._is_used:
            with contextlib.suppress(ConnectionResetError):
                self._control.recv(len(READY), socket.MSG_PEEK)

    def fork(self, name: str, files: Sequence[int]) -> None:
        """Request a process with that standard input, log and socket for reports."""
        self._is_used = True
        # It has ended where one of these fails; the socket for reports tells.
        with contextlib.suppress(ProcessLookupError, BrokenPipeError, ConnectionResetError):
            # The limit on open files is raised for a run once it is known how large that is.
            resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))
            socket.send_fds(self._control, [name.encode()], files)

    def await_end(self) -> int:
        """Return its exit code, where it is about to end."""
        try:
            return self._process.wait(_SERVER_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def hang_up(self) -> None:
        """Have the server end. Where no role is a fork of it, it may be busy with its imports, for nothing."""
        self._control.close()
        if not self._is_used:
            self._process.kill()

    def close(self) -> None:
        """End the server; it kills the roles that are left."""
        self.hang_up()
        self.await_end()
        self.output.close()


class HostedProcess:
    """The process of a role, wherever it runs.

    report: the socket on which its number comes, in a line, and later its exit code; it ends early where nobody can
    tell the code any more. log: the file with its output; it is closed with the process.
    """

    def __init__(self, name: str, report: socket.socket, log: IO[bytes]) -> None:
        self.name = name
        self._report, self._log = report, log
        self._reported = b""
        self._lost = False
        report.setblocking(False)

    @property
    def end_file(self) -> int:
        """A descriptor that is readable where there is news of the process: its number, or how it ended."""
        return self._report.fileno()

    @property
    def pid(self) -> int | None:
        """The number of the process on its machine, None as long as that is not known."""
        return next(iter(self._read_report()), None) or None  # 0 where it could not be started

    @property
    def host_lost(self) -> str:
        """Why its host is lost, "" if it is not."""
        return ""

    @property
    def local_pid(self) -> int | None:
        """Its number where it runs on this machine, whose system knows what it does; else None."""
        return None

    def returncode(self) -> int | None:
        """Its exit code, -9 for SIGKILL; None while it runs. What it has started was killed once it has ended."""
        numbers = self._read_report()
        if len(numbers) > 1:
            return numbers[1]
        return self._find_code() if self._lost else None

    def _read_report(self) -> list[int]:
        """Return its number, and its exit code, as far as they are known."""
        while not self._lost and self._report.fileno() >= 0:
            try:
                news = self._report.recv(64)
            except BlockingIOError:
                break
            self._reported += news
            self._lost = not news
        return [int(line) for line in self._reported.split(b"\n")[:-1]]

    def _find_code(self) -> int:
        """Return an exit code where nobody can tell it any more."""
        return -signal.SIGKILL

    def last_lines(self) -> str:
        """The last lines of its output."""
        return read_last_lines(self._log)

    def hang_up(self) -> None:
        """Have the process end at once, as when the launcher ends."""
        raise NotImplementedError

    def signal(self, number: int) -> None:
        """Send a signal to the process and what it has started; does nothing where it has ended or not begun."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill the process, and release its log and descriptors. Its host reaps it."""
        self.signal(signal.SIGKILL)
        if self.pid is not None:
            await_ends([self], KILL_S)
        self.hang_up()
        self._report.close()
        self._log.close()

    def __repr__(self) -> str:
        code = self.returncode()
        state = "running" if code is None else f"ended with {code}"
        return f"{type(self).__name__}({self.name}, pid {self.pid}, {state})"


class RoleProcess(HostedProcess):
    """A process on this machine, as `ForkServers` starts it."""

    def __init__(self, name: str, server: _ServerProcess, log: IO[bytes]) -> None:
        report, theirs = socket.socketpair()
        super().__init__(name, report, log)
        self._server = server
        stdin, self.stdin = os.pipe()
        with theirs:
            server.fork(name, [stdin, log.fileno(), theirs.fileno()])
        os.close(stdin)

    @property
    def local_pid(self) -> int | None:
        """Its number; see `HostedProcess`."""
        return self.pid

    def _find_code(self) -> int:
        return self._server.await_end()  # with which the role has ended

    def last_lines(self) -> str:
        """The last lines of its output; of the server's where that could not start it."""
        return read_last_lines(self._server.output) if self.pid is None else super().last_lines()

    def hang_up(self) -> None:
        """Close the pipe to the process, at which it ends at once."""
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def signal(self, number: int) -> None:
        """Send a signal; see `HostedProcess`."""
        if self.returncode() is None and self.pid is not None:
            os.killpg(self.pid, number)


def read_last_lines(file: IO[bytes]) -> str:
    """Return the last lines of what was printed to a file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL_BYTES))
    text = file.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-LAST_LINES:])


def await_ends(processes: Sequence[HostedProcess], timeout_s: float) -> None:
    """Wait until all have ended, for `timeout_s` at most."""
    deadline = time.monotonic() + timeout_s
    while running := [process for process in processes if process.returncode() is None]:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            return
        poller = select.poll()
        for process in running:
            poller.register(process.end_file, select.POLLIN)
        poller.poll(remaining_s * 1000)


def end_all(processes: list[HostedProcess]) -> None:
    """End whatever still runs, by SIGTERM, then SIGKILL; reap all and empty the list, even if interrupted."""
    try:
        for process in processes:
            process.signal(signal.SIGTERM)
        await_ends(processes, TERM_S)
    finally:
        while processes:
            processes.pop().kill()
