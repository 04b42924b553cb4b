"""`RemoteProcess`: the process of a role on another machine, as the launcher sees it."""

import contextlib
import os
import signal
import socket
from typing import IO, Protocol

from .role_process import KILL_S, HostedProcess, await_ends


class ProcessControls(Protocol):
    """What a process asks of its host. lost: why the host is lost, "" if it is not."""

    lost: str

    def signal(self, process: "RemoteProcess", number: int) -> None:
        """Send a signal to a process."""

    def hang_up(self, process: "RemoteProcess") -> None:
        """Close the pipe to a process."""

    def release(self, process: "RemoteProcess") -> None:
        """Forget a process that the launcher has done with."""


class RemoteProcess(HostedProcess):
    """The process of a role on another machine. theirs: the end of the socket for reports that its host writes to."""

    def __init__(self, name: str, host: ProcessControls, number: int, log: IO[bytes]) -> None:
        report, self.theirs = socket.socketpair()
        super().__init__(name, report, log)
        self.number = number
        self._host, self._written = host, 0
        self._released = False

    def write_log(self, data: bytes) -> None:
        """Append what it has printed."""
        with contextlib.suppress(OSError, ValueError):  # a full disk, or a log that is closed
            os.pwrite(self._log.fileno(), data, self._written)
            self._written += len(data)

    @property
    def host_lost(self) -> str:
        """Why its host is lost; see `HostedProcess`."""
        return self._host.lost

    def hang_up(self) -> None:
        """Have the process end; see `HostedProcess`."""
        if not self._released:
            self._host.hang_up(self)

    def signal(self, number: int) -> None:
        """Send a signal; see `HostedProcess`."""
        if not self._released and self.returncode() is None:
            self._host.signal(self, number)

    def kill(self) -> None:
        """Kill the process there, and release what is held of it here."""
        if self._released:
            return
        self.signal(signal.SIGKILL)
        if self.pid is not None:
            await_ends([self], KILL_S)
        self._released = True
        self._host.release(self)
        self._report.close()
        self._log.close()
