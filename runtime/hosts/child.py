"""What the process of a role does, from its fork (fork_server.py) to its end.

It sends "hello", waits for "start" with the directory of all roles, calls the entry `entry(channel, setup, progress)`,
and reports how that ended. It ends at once when the launcher does, however that ended.
"""

import contextlib
import ctypes
import errno
import importlib
import io
import os
import signal
import sys
import threading
import traceback
from dataclasses import asdict
from typing import Any

import numpy as np
import zmq
from setproctitle import setproctitle

from ...errors import NetworkError
from ..channel.mailbox import Stopped, stop_error
from ..channel.message import LAUNCHER, Message, encode
from ..channel.peer_connection import PeerConnection
from ..channel.zmq_channel import ZmqChannel
from .assignment import Assignment, read_assignment
from .failure_report import describe_failure
from .heartbeat import HeartbeatThread, RoleProgress
from .role_process import PROCESS_TITLE

_PR_SET_PDEATHSIG = 1  # prctl(2)


class _LogStream(io.RawIOBase):
    """Writes to a descriptor, whose disk may be full: what a role prints is not worth an exception in it then."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def open(cls, descriptor: int) -> io.TextIOWrapper:
        """Return a text stream of lines, in UTF-8 whatever the locale."""
        raw: Any = cls(descriptor)  # unbuffered, as with `python -u`
        return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: Any) -> int:
        rest = memoryview(text)
        size = rest.nbytes
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise
        return size


def main(name: str) -> int:
    """Run the role whose assignment stands in stdin, in a process of its own. Returns the exit code."""
    setproctitle(f"{PROCESS_TITLE} {name}")
    launcher = _take_stdin()
    continue_when_parent_ends()
    assignment = read_assignment(launcher)
    threading.Thread(target=_end_with_launcher, args=(launcher,), name="cutset-watch", daemon=True).start()
    sys.path[:] = assignment.path
    sys.stdout, sys.stderr = (_LogStream.open(descriptor) for descriptor in (1, 2))
    np.random.seed()  # a fork would draw what the others draw
    try:
        channel = ZmqChannel(assignment.name, assignment.job, assignment.keys, host=assignment.host)
    except NetworkError as error:
        return _report_bind_failure(assignment, error)
    with channel:
        channel.introduce({LAUNCHER: assignment.launcher}, key_owners=assignment.key_owners)
        return _run_role(assignment, channel)


def _report_bind_failure(assignment: Assignment, error: NetworkError) -> int:
    """Report that this role cannot listen at its address; sending needs no such address. Returns the exit code."""
    report, exit_code = _failure_message(error, assignment.name)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    connection = PeerConnection(context, assignment.keys, peer=LAUNCHER, endpoint=assignment.launcher)
    connection.send(encode(report, job=assignment.job, sender=assignment.name, sequence=0))
    connection.close()
    context.term()
    return exit_code


def _take_stdin() -> int:
    """Move the pipe from the launcher away from descriptor 0, where the role's own code could read it."""
    launcher = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return launcher


def continue_when_parent_ends() -> None:
    """Have the kernel continue this process when its parent ends: a stopped one could not end with it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)


def _end_with_launcher(launcher: int) -> None:
    """End this process, and what it has started, when the pipe from the launcher closes."""
    while os.read(launcher, 4096):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _run_role(assignment: Assignment, channel: ZmqChannel) -> int:
    try:
        value = _call_entry(assignment, channel)
        channel.send(LAUNCHER, Message("finished", body={"value": value}))
    except Stopped as stop:
        channel.send(LAUNCHER, Message("finished", body={"value": None, "stopped": stop.facts}))
    except BaseException as error:  # the launcher decides what to do about it
        report, exit_code = _failure_message(error, assignment.name)
        with contextlib.suppress(OSError):  # of a full disk; the report has the traceback, too
            traceback.print_exc()  # first: the launcher may end this process as soon as it has the report
        channel.send(LAUNCHER, report)
        return exit_code
    return 0


def _call_entry(assignment: Assignment, channel: ZmqChannel) -> Any:
    entry = _load(assignment.entry)
    channel.send(LAUNCHER, Message("hello", body={"endpoint": channel.endpoint}))
    _await_start(channel, assignment.start_timeout_s)
    progress = RoleProgress()
    heartbeat = HeartbeatThread(
        progress,
        channel.open_connection(LAUNCHER),
        job=assignment.job,
        name=assignment.name,
        interval_s=assignment.heartbeat_interval_s,
    )
    with heartbeat:
        return entry(channel, assignment.setup, progress)


def _load(entry: str) -> Any:
    module, _, function = entry.partition(":")
    return getattr(importlib.import_module(module), function)


def _await_start(channel: ZmqChannel, timeout_s: float) -> None:
    """Wait for "start" and take in where the other roles listen.

    Some roles may have started before and have sent something; the role receives it afterwards.
    """
    early: list[Message] = []
    while (message := channel.receive(timeout_s)).kind not in ("start", "stop"):
        early.append(message)
    if message.kind == "start":
        channel.introduce(message.body["directory"], key_owners=message.body["key_owners"])
        for name in message.body["gone"]:
            channel.forget(name)
        channel.requeue(early)
        return
    raise stop_error(channel.name, message)


def _failure_message(error: BaseException, name: str) -> tuple[Message, int]:
    failure = describe_failure(error, name, "".join(traceback.format_exception(error)))
    return Message("failed", body=asdict(failure)), failure.exit_code
