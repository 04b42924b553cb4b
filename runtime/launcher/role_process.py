"""`RoleProcess`: the process of one role and its log, in a session of its own: Ctrl-C reaches only the launcher."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO

LAST_LINES = 20
LOOK_S = 0.25  # between two looks at processes, where the system does not tell that they have ended
TERM_S = 1.0  # from SIGTERM to SIGKILL
_TAIL_BYTES = 8192
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT  # do not reap yet: until then its number is nobody else's
_COMMAND = (sys.executable, "-P", "-u", "-X", "faulthandler", "-m", "cutset.runtime.launcher.child")


def environment(base: Mapping[str, str], *, threads: int) -> dict[str, str]:
    """The environment of a role.

    Spinning OpenMP teams of several processes would starve each other. glibc would give large buffers back to the
    kernel and fault them in again at every message; told not to, it keeps them.
    """
    return {
        **base,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
        "MALLOC_ARENA_MAX": "1",
    }


class RoleProcess:
    """A spawned process. log: a file that takes what it prints; closed with it. prefix: a command that runs it."""

    def __init__(
        self, name: str, *, environment: Mapping[str, str], log: IO[bytes], prefix: Sequence[str] = ()
    ) -> None:
        self.name = name
        self._log = log
        self._process = subprocess.Popen(
            (*prefix, *_COMMAND, name),  # the name is for `ps` alone; what the role needs comes over stdin
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            bufsize=0,
            env=dict(environment),
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.end_file = _pidfd(self.pid)

    @property
    def stdin(self) -> int:
        """The pipe to it; it ends when this is closed."""
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def returncode(self) -> int | None:
        """Its exit code, -9 for SIGKILL; None while it runs. What it has started ends with it."""
        if self._process.returncode is None and os.waitid(os.P_PID, self.pid, _LOOK) is not None:
            with contextlib.suppress(PermissionError):  # some systems say so where nobody else is left
                os.killpg(self.pid, signal.SIGKILL)
        return self._process.poll()

    def last_lines(self) -> str:
        """The end of what it printed."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _TAIL_BYTES))
        text = self._log.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-LAST_LINES:])

    def hang_up(self) -> None:
        """Close the pipe to it, at which it ends at once."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def signal(self, number: int) -> None:
        """Send a signal to it and to what it has started; nothing where it is gone."""
        if self.returncode() is None:
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """End it for certain and release what belongs to it."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        self.hang_up()
        self._log.close()
        if self.end_file is not None:
            os.close(self.end_file)
            self.end_file = None

    def __repr__(self) -> str:
        code = self.returncode()
        return f"RoleProcess({self.name}, pid {self.pid}, {'running' if code is None else f'ended with {code}'})"


def _pidfd(pid: int) -> int | None:
    """A descriptor that is readable once the process has ended, where the system has such."""
    if sys.platform != "linux":
        return None
    return os.pidfd_open(pid)


def await_ends(processes: Sequence[RoleProcess], timeout_s: float) -> None:
    """Return when all have ended, or time is up."""
    deadline = time.monotonic() + timeout_s
    while running := [process for process in processes if process.returncode() is None]:
        left = deadline - time.monotonic()
        if left <= 0:
            return
        poller = select.poll()
        for process in running:
            if process.end_file is not None:
                poller.register(process.end_file, select.POLLIN)
        poller.poll(min(left, LOOK_S) * 1000)


def end_all(processes: list[RoleProcess]) -> None:
    """End whatever still runs, even if this is interrupted, reap it, and empty the list."""
    try:
        for process in processes:
            process.signal(signal.SIGTERM)
        await_ends(processes, TERM_S)
    finally:
        while processes:
            processes.pop().kill()
