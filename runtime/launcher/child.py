"""The life of one role's process: `python -m cutset.runtime.launcher.child`, started by `Launcher` and told the rest over stdin.

It says hello, waits for the directory, runs the role's entry `entry(channel, setup, beacon)`, and reports how it ended.
It ends at once when the launcher does, however that ended. Slow imports come after that is sure.
"""

import importlib
import os
import signal
import sys
import threading
import traceback
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import assignment as assignments
from .assignment import LAUNCHER, Assignment

if TYPE_CHECKING:
    from ...errors import NetworkError
    from ..channel.message import Message
    from ..channel.zmq_channel import ZmqChannel


def main() -> int:
    """Run the role that stdin tells; the exit code."""
    launcher = _take_stdin()
    assignment = assignments.read(launcher)
    threading.Thread(target=_end_with, args=(launcher,), name="cutset-watch", daemon=True).start()
    sys.path[:] = assignment.path
    from ...errors import NetworkError
    from ..channel.zmq_channel import ZmqChannel

    try:
        channel = ZmqChannel(assignment.name, assignment.job, assignment.keys, host=assignment.host)
    except NetworkError as error:
        return _say_deaf(assignment, error)
    with channel:
        channel.introduce({LAUNCHER: assignment.launcher})
        return _live(assignment, channel)


def _say_deaf(assignment: Assignment, error: "NetworkError") -> int:
    """Report that this role cannot listen at its address; that much can be sent from any other."""
    import zmq

    from ..channel.link import Link
    from ..channel.message import encode

    report, exit_code = _report(error, assignment.name)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link = Link(context, assignment.keys, peer=LAUNCHER, endpoint=assignment.launcher)
    link.send(encode(report, job=assignment.job, sender=assignment.name, sequence=0))
    link.close()
    context.term()
    return exit_code


def _take_stdin() -> int:
    """Move the pipe from the launcher away from descriptor 0, where the role's own code could read it."""
    launcher = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return launcher


def _end_with(launcher: int) -> None:
    """End this process, and what it has started, when the pipe from the launcher closes."""
    while os.read(launcher, 4096):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _live(assignment: Assignment, channel: "ZmqChannel") -> int:
    from ..channel.mailbox import Stopped
    from ..channel.message import Message

    try:
        value = _work(assignment, channel)
        channel.send(LAUNCHER, Message("finished", body={"value": value}))
    except Stopped as stop:
        channel.send(LAUNCHER, Message("finished", body={"value": None, "stopped": stop.facts}))
    except BaseException as error:  # whatever ends the role is the launcher's to know
        traceback.print_exc()
        report, exit_code = _report(error, assignment.name)
        channel.send(LAUNCHER, report)
        return exit_code
    return 0


def _work(assignment: Assignment, channel: "ZmqChannel") -> Any:
    from .heartbeat import Beacon, Pulse
    from ..channel.message import Message

    entry = _load(assignment.entry)
    channel.send(LAUNCHER, Message("hello", body={"endpoint": channel.endpoint}))
    _await_start(channel, assignment.start_timeout_s)
    beacon = Beacon()
    link = channel.side_link(LAUNCHER)
    with Pulse(beacon, link, job=assignment.job, name=assignment.name, interval_s=assignment.beacon_interval_s):
        return entry(channel, assignment.setup, beacon)


def _load(entry: str) -> Any:
    module, _, function = entry.partition(":")
    return getattr(importlib.import_module(module), function)


def _await_start(channel: "ZmqChannel", timeout_s: float) -> None:
    """Learn where the others are. Some may have learnt it before and have sent something: that is for the role."""
    early: list[Message] = []
    while (message := channel.receive(timeout_s)).kind not in ("start", "stop"):
        early.append(message)
    if message.kind == "start":
        channel.introduce(message.body["directory"])
        for name in message.body["gone"]:
            channel.forget(name)
        channel.put_back(early)
        return
    from ..channel.mailbox import Stopped

    raise Stopped("E601", f"{channel.name} was told to stop: {message.body.get('why', 'the run ended')}")


def _report(error: BaseException, name: str) -> tuple["Message", int]:
    from .failure_report import failure_of
    from ..channel.message import Message

    failure = failure_of(error, name, "".join(traceback.format_exception(error)))
    return Message("failed", body=asdict(failure)), failure.exit_code


if __name__ == "__main__":
    sys.exit(main())
