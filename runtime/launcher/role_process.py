"""`RoleProcess`: the process of one role and its log.

It runs in a session of its own, so that Ctrl-C reaches only the launcher.
"""

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
POLL_S = 0.25  # between two checks of processes, where the system cannot notify of their end
TERM_S = 1.0  # from SIGTERM to SIGKILL
_TAIL_BYTES = 8192
_PEEK = os.WEXITED | os.WNOHANG | os.WNOWAIT  # without reaping: until then nobody else gets its number
REPRODUCIBLE = "AUTO"  # value of MKL_CBWR; see `role_environment`
_COMMAND = (sys.executable, "-P", "-u", "-X", "faulthandler", "-m", "cutset.runtime.launcher.child")


def role_environment(base: Mapping[str, str], *, threads: int) -> dict[str, str]:
    """The environment of a role with so many threads, made from the launcher's.

    Bits: MKL chooses among kernels by how the operands are aligned in memory, so on some processors (AMD Zen) the last
    bit of a product depends on where malloc happened to put a tensor. In its mode of conditional numerical
    reproducibility (MKL_CBWR) the same operation gives the same bits at any address. AUTO takes the fastest code path
    of the processor. A setting of the user's is kept.

    Speed: spinning OpenMP teams of several processes would starve each other. glibc would return large buffers to the
    kernel and fault them in again at every message; these settings make it keep them.
    """
    return {
        "MKL_CBWR": REPRODUCIBLE,
        **base,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
        "MALLOC_ARENA_MAX": "1",
    }


class RoleProcess:
    """A spawned process.

    environment: the variables of its environment, all of them. log: the file that takes its output; it is closed with
    the process. prefix: a command that runs the process, as `ip netns exec NAME` does. end_file: a descriptor that is
    readable once the process has ended, where the system has such.
    """

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
        self.end_file = _open_pidfd(self.pid)

    @property
    def stdin(self) -> int:
        """The pipe to the process, which ends when the pipe is closed."""
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def returncode(self) -> int | None:
        """Its exit code, -9 for SIGKILL; None while it runs. Kills what it has started once it has ended."""
        if self._process.returncode is None and os.waitid(os.P_PID, self.pid, _PEEK) is not None:
            with contextlib.suppress(PermissionError):  # some systems say so where nobody else is left
                os.killpg(self.pid, signal.SIGKILL)
        return self._process.poll()

    def last_lines(self) -> str:
        """The last lines of its output."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _TAIL_BYTES))
        text = self._log.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-LAST_LINES:])

    def hang_up(self) -> None:
        """Close the pipe to the process, at which it ends at once."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def signal(self, number: int) -> None:
        """Send a signal to the process and what it has started; does nothing where it has ended."""
        if self.returncode() is None:
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kill the process, reap it, and release its log and descriptors."""
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


def _open_pidfd(pid: int) -> int | None:
    """A descriptor that is readable once the process has ended; None where the system has no such."""
    if sys.platform != "linux":
        return None
    return os.pidfd_open(pid)


def await_ends(processes: Sequence[RoleProcess], timeout_s: float) -> None:
    """Wait until all have ended, for `timeout_s` at most."""
    deadline = time.monotonic() + timeout_s
    while running := [process for process in processes if process.returncode() is None]:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            return
        poller = select.poll()
        for process in running:
            if process.end_file is not None:
                poller.register(process.end_file, select.POLLIN)
        poller.poll(min(remaining_s, POLL_S) * 1000)


def end_all(processes: list[RoleProcess]) -> None:
    """End whatever still runs, by SIGTERM, then SIGKILL; reap all and empty the list, even if interrupted."""
    try:
        for process in processes:
            process.signal(signal.SIGTERM)
        await_ends(processes, TERM_S)
    finally:
        while processes:
            processes.pop().kill()
