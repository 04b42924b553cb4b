"""The main program that forks the processes of roles; `ForkServers` in role_process.py starts it.

Importing torch costs more than a second of a CPU. This process does it once, without starting a thread, and each role
is a fork of it. It is the roles' parent, so it also sees how they end.
"""

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
from dataclasses import dataclass

from ...end_process import end_process
from .child import continue_when_parent_ends
from .child import main as run_role
from .role_process import READY

REQUEST_BYTES = 1 << 16
REQUEST_FILES = 3  # the role's standard input, its log, and the socket on which its end is reported
_PRELOADED = "torch.fx.experimental.symbolic_shapes"  # or else the first backward would, for a third of a second
_PEEK = os.WEXITED | os.WNOHANG | os.WNOWAIT  # without reaping: until then nobody else gets its number


@dataclass
class _Forked:
    """A role's process. end_file: readable once it has ended. report: closed by the launcher when it may be reaped."""

    pid: int
    end_file: int
    report: socket.socket
    ended: bool = False


def main() -> int:
    """Import the modules that the arguments name, and fork roles until the socket that is standard input is closed.

    Returns the exit code, in the process of a role that of the role.
    """
    continue_when_parent_ends()
    control = socket.socket(fileno=os.dup(0))
    _open_nothing(0)
    gc.disable()  # a fifth of the time of the imports is spent looking for garbage, of which they make none
    for module in (_PRELOADED, *sys.argv[1:]):
        importlib.import_module(module)
    gc.enable()
    gc.freeze()  # what is shared with the roles is not touched by their garbage collections
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the launcher has ended
        control.send(READY)
    name = _ForkServer(control).serve()
    return 0 if name is None else run_role(name)


class _ForkServer:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._roles: list[_Forked] = []

    def serve(self) -> str | None:
        """Fork roles as they are requested; return the name of a role in its process, None at the end."""
        while True:
            poller = select.poll()
            poller.register(self._control, select.POLLIN)
            for role in self._roles:
                poller.register(role.report, 0)  # that it is closed is always told
                if not role.ended:
                    poller.register(role.end_file, select.POLLIN)
            ready = {file for file, _ in poller.poll()}
            for role in list(self._roles):
                if role.end_file in ready and not role.ended:
                    self._report_end(role)
                if role.report.fileno() in ready:
                    self._reap(role)
            if self._control.fileno() in ready:
                try:
                    request, files, _, _ = socket.recv_fds(self._control, REQUEST_BYTES, REQUEST_FILES)
                except ConnectionResetError:  # it is closed, and READY was not read
                    break
                if not request:
                    break
                if self._fork(request.decode(), files):
                    return request.decode()
        for role in list(self._roles):
            self._reap(role)
        return None

    def _fork(self, name: str, files: list[int]) -> bool:
        """Fork a role; return whether this is its process."""
        stdin, log, report = files
        try:
            pid = os.fork()
        except OSError as error:
            os.write(2, f"{name} could not be started: {error}\n".encode())
            os.write(report, b"0\n%d\n" % os.EX_OSERR)
            for file in files:
                os.close(file)
            return False
        if pid:
            self._roles.append(_Forked(pid, os.pidfd_open(pid), socket.socket(fileno=report)))
            os.close(stdin)
            os.close(log)
            return False
        os.setsid()
        os.write(report, b"%d\n" % os.getpid())  # only now: signals go to its session
        os.dup2(stdin, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for file in files:
            os.close(file)
        self._control.close()
        for role in self._roles:
            os.close(role.end_file)
            role.report.close()
        return True

    def _report_end(self, role: _Forked) -> None:
        """Kill what an ended role has started, and report its exit code, -9 for SIGKILL."""
        ended = os.waitid(os.P_PID, role.pid, _PEEK)
        if ended is None:
            return
        role.ended = True
        self._kill_group(role)
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the launcher has ended, or wants no report
            role.report.sendall(b"%d\n" % code)

    def _reap(self, role: _Forked) -> None:
        self._kill_group(role)
        os.waitpid(role.pid, 0)
        os.close(role.end_file)
        role.report.close()
        self._roles.remove(role)

    def _kill_group(self, role: _Forked) -> None:
        """Kill a role and what it has started; one that has no session yet has started nothing."""
        try:
            os.killpg(role.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # the second where nobody is left in it, on some systems
            os.kill(role.pid, signal.SIGKILL)


def _open_nothing(descriptor: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)


if __name__ == "__main__":
    end_process(main())
