"""`ReaderForks`: forks the processes that read samples from one that was forked before there was a model.

A fork of the process that trains would hold its memory as it was: each page that is then written is copied first, which
for a large model takes seconds, and both copies are kept. So a small process is forked while there is little, and forks
readers when they are wanted.
"""

import ctypes
import os
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import torch

from ...errors import ProcessLost

_PR_SET_PDEATHSIG = 1  # prctl(2)
_FORK = 0  # the request for a fork, which comes with its socket; any other is the pid of one that shall be reaped
_NUMBER_BYTES = 8
_FIX = "Task(..., loaders=0) reads it in the process that trains, as data needs that cannot be read after a fork"


class ReaderForks:
    """Forks processes. serve: what each does with its socket until that is closed. what: they read, in words."""

    def __init__(self, serve: Callable[[socket.socket], object], what: str) -> None:
        self.what = what
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: the fork uses none of them
            self._pid = os.fork()
        if not self._pid:
            self._control.close()
            _end_after(partial(_serve_forks, theirs, serve))
        theirs.close()

    def fork(self) -> tuple[int, socket.socket]:
        """Return the pid of a new process, and this end of its socket."""
        ours, theirs = socket.socketpair()
        try:
            return self._ask(_FORK, theirs), ours
        except ProcessLost:
            ours.close()
            raise
        finally:
            theirs.close()

    def reap(self, pid: int) -> int:
        """Wait for the end of a process; return its exit code, of one that was killed minus the signal."""
        return self._ask(pid)

    def describe_end(self, pid: int) -> ProcessLost:
        """Wait for the end of a process that was not to end; return the error of it."""
        ended = self.reap(pid)
        how = f"was killed by {signal.Signals(-ended).name}" if ended < 0 else f"ended with exit code {ended}"
        return ProcessLost("E602", f"a process that read {self.what} {how}", fix=_FIX)

    def close(self) -> None:
        """End all processes."""
        self._control.close()
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _ask(self, request: int, *sockets: socket.socket) -> int:
        try:
            socket.send_fds(self._control, [_to_bytes(request)], [one.fileno() for one in sockets])
            reply = self._control.recv(_NUMBER_BYTES)
        except OSError:
            reply = b""
        if not reply:
            raise ProcessLost("E602", f"the process that forks those that read {self.what} is gone", fix=_FIX)
        return int.from_bytes(reply, "little", signed=True)

    def __repr__(self) -> str:
        return f"ReaderForks({self._pid}, {self.what})"


def _serve_forks(control: socket.socket, serve: Callable[[socket.socket], object]) -> None:
    torch.set_num_threads(1)  # threads of the process that trains are not here
    while True:
        request, files, _, _ = socket.recv_fds(control, _NUMBER_BYTES, 1)
        if not request:
            return
        pid = int.from_bytes(request, "little", signed=True)
        if pid != _FORK:
            _, status = os.waitpid(pid, 0)
            control.send(_to_bytes(os.waitstatus_to_exitcode(status)))
            continue
        theirs = socket.socket(fileno=files[0])
        pid = os.fork()
        if not pid:
            control.close()
            _end_after(partial(serve, theirs))
        theirs.close()
        control.send(_to_bytes(pid))


def _to_bytes(number: int) -> bytes:
    return number.to_bytes(_NUMBER_BYTES, "little", signed=True)


def _end_after(work: Callable[[], object]) -> NoReturn:
    """Do the work of a fork, and end it: nothing above may go on there, whatever happens. It ends with its parent."""
    code = 0
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        work()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        code = 1
    os._exit(code)
