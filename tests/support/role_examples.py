"""Small roles for the tests of the launcher; each is the entry of a spawned process."""

import atexit
import hashlib
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cutset.errors import Diverged, NetworkError
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.message import Message
from cutset.runtime.channel.zmq_channel import ZmqChannel
from cutset.runtime.hosts.heartbeat import RoleProgress


def ring(channel: ZmqChannel, setup: dict[str, Any], progress: RoleProgress) -> float:
    """Send a number to the next, add what comes from the previous, tell the progress, return the sum."""
    mailbox = Mailbox(channel, timeout_s=30)
    total = 0.0
    for step in range(setup["steps"]):
        mailbox.send(setup["next"], Message("number", step, tensors=(torch.tensor([setup["number"]]),)))
        total += float(mailbox.wait([(setup["previous"], "number", step, 0, 0)]).tensors[0])
        progress.value = step
        mailbox.send("launcher", Message("progress", step, body={"total": total}))
    return total


def environment(channel: ZmqChannel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """What this process was given."""
    return {
        "threads": torch.get_num_threads(),
        "argv": sys.argv,
        "environ": dict(os.environ),
        "stdin": sys.stdin.read(),
        "leader": os.getsid(0) == os.getpid(),
        "modules": sorted({"torch._dynamo", "networkx", "pymetis"} & set(sys.modules)),
    }


def waits(channel: ZmqChannel, setup: Any, progress: RoleProgress) -> None:
    """Say so, then wait for a message that never comes."""
    channel.send("launcher", Message("waiting", body={"pid": os.getpid()}))
    Mailbox(channel, timeout_s=setup or 60).wait([("nobody", "nothing", 0, 0, 0)])


def outlives_its_result(channel: ZmqChannel, setup: float, progress: RoleProgress) -> str:
    """Leave work behind that takes so many seconds once the interpreter ends."""
    atexit.register(time.sleep, setup)
    return "done"


def serves(channel: ZmqChannel, setup: Any, progress: RoleProgress) -> None:
    """Echo until told to stop."""
    while (message := channel.receive(30)).kind != "stop":
        channel.send(message.sender, Message("echo", message.step, tensors=message.tensors))
    channel.send("launcher", Message("result", body={"why": message.body["why"]}))


def asks(channel: ZmqChannel, setup: str, progress: RoleProgress) -> int:
    """Ask the server at once, which may not have heard the word to start yet."""
    for step in range(20):
        channel.send(setup, Message("ask", step, tensors=(torch.full((1000,), float(step)),)))
    return sum(int(channel.receive(30).tensors[0][0]) for _ in range(20))


def raises(channel: ZmqChannel, setup: str, progress: RoleProgress) -> None:
    """Fail in the way that the setup names."""
    if setup == "diverged":
        raise Diverged("E701", "the loss is NaN at step 3", fix="lower the rate")
    if setup == "memory":
        torch.empty(1 << 60, dtype=torch.uint8)
    if setup == "network":
        raise NetworkError("E501", "waited 1 s and no message came")
    if setup == "exit":
        sys.stdout.write("something odd was printed\n")
        os._exit(3)
    if setup == "unplain":
        channel.send("launcher", Message("progress", body={"what": torch.Generator()}))
    raise ValueError(f"no such way to fail: {setup}")


def returns_what_is_not_plain(channel: ZmqChannel, setup: Any, progress: RoleProgress) -> Any:
    return torch.Generator()


def greets(channel: ZmqChannel, setup: str, progress: RoleProgress) -> str:
    """Greet the server, say that it has answered, and wait for the word to end; the own name."""
    mailbox = Mailbox(channel, timeout_s=60)
    mailbox.send(setup, Message("ask", tensors=(torch.ones(1),)))
    mailbox.wait([(setup, "echo", 0, 0, 0)])
    channel.send("launcher", Message("greeted", body={"pid": os.getpid()}))
    mailbox.wait([("launcher", "end", 0, 0, 0)])
    return channel.name


def ignores_everything(channel: ZmqChannel, setup: Any, progress: RoleProgress) -> None:
    """Neither reads its messages nor minds SIGTERM, and has a child of its own."""
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "1000"])
    channel.send("launcher", Message("waiting", body={"pid": os.getpid(), "child": child.pid}))
    while True:
        signal.pause()


def holds_the_lock(channel: ZmqChannel, setup: float, progress: RoleProgress) -> float:
    """Compute in native code that keeps the interpreter's lock, for so many seconds at least; how long it was."""
    length, seconds = 18, 0.0
    while seconds < setup:  # each time takes twice as long as the time before
        began = time.monotonic()
        re.match(r"(a+)+$", "a" * length + "b")
        length, seconds = length + 1, time.monotonic() - began
    return seconds


def draws(channel: ZmqChannel, setup: Any, progress: RoleProgress) -> tuple[float, float]:
    """From the generators that a process has without a seed."""
    return float(np.random.random()), random.random()


def prints(channel: ZmqChannel, setup: str, progress: RoleProgress) -> None:
    sys.stdout.write(f"{setup}\n")


def prints_endlessly(channel: ZmqChannel, setup: Any, progress: RoleProgress) -> None:
    while (message := channel.poll()) is None or message.kind != "stop":
        sys.stdout.write("again and again\n" * 100)
        progress.value = time.monotonic_ns()


def digests(channel: ZmqChannel, setup: Any, progress: RoleProgress) -> dict[str, str]:
    """The digest of each file of a folder, "" where there is none."""
    files = {path: Path(setup["folder"]) / path for path in setup["paths"]}
    return {
        path: hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else "" for path, file in files.items()
    }
