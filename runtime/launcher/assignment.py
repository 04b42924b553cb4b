"""`Assignment`: what a new process learns of itself, over its standard input - never by arguments or environment, as it
holds a secret key."""

import os
import select
import time
from typing import Any

import msgspec

from ..channel.keys import Keys

LAUNCHER = "launcher"
_LENGTH_BYTES = 8


class Assignment(msgspec.Struct, frozen=True):
    """One role of a job. entry: "package.module:function"; setup: its plain data; path: where modules are sought."""

    name: str
    job: str
    entry: str
    setup: Any
    keys: Keys
    launcher: str
    host: str
    path: list[str]
    start_timeout_s: float
    beacon_interval_s: float


def write(assignment: Assignment, file: int, *, deadline: float) -> None:
    """Hand it over through the pipe `file`, until `deadline` (monotonic) at most.

    A process that dies or does not read is no error here: whoever watches it says more about it.
    """
    payload = msgspec.msgpack.encode(assignment)
    rest = memoryview(len(payload).to_bytes(_LENGTH_BYTES, "big") + payload)
    os.set_blocking(file, False)
    poller = select.poll()
    poller.register(file, select.POLLOUT)
    while rest and poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
        try:
            rest = rest[os.write(file, rest) :]
        except BrokenPipeError:
            return


def read(file: int) -> Assignment:
    """Take it from the pipe `file`; EOFError where the launcher ended before it was whole."""
    length = int.from_bytes(_exactly(file, _LENGTH_BYTES), "big")
    return msgspec.msgpack.decode(_exactly(file, length), type=Assignment)


def _exactly(file: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = os.read(file, min(count - len(data), 1 << 20))
        if not piece:
            raise EOFError("the launcher ended before it had told this process what to do")
        data += piece
    return bytes(data)
