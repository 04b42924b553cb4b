"""`Assignment`: what a new process has to do, which it reads from its standard input.

It holds a secret key, so it never travels in arguments or in the environment, which other users can read.
"""

import os
import select
import time
from typing import Any

import msgspec

from ..channel.curve import Keys

_LENGTH_BYTES = 8


class Assignment(msgspec.Struct, frozen=True):
    """One role of a job, as its process gets it.

    entry: "package.module:function". setup: plain data for the entry. key_owners: the host of each role that there is,
    whose keys it holds. launcher: the launcher's end point. host: the address to listen on. path: `sys.path` of the
    process.
    """

    name: str
    job: str
    entry: str
    setup: Any
    keys: Keys
    key_owners: dict[str, str]
    launcher: str
    host: str
    path: list[str]
    start_timeout_s: float
    heartbeat_interval_s: float


def write_assignment(assignment: Assignment, file: int, *, deadline: float) -> None:
    """Write an assignment to the pipe `file`, until `deadline` (of `time.monotonic`) at most.

    A process that dies or does not read is no error here: the launcher notices it otherwise, and knows more then.
    """
    payload = msgspec.msgpack.encode(assignment)
    unsent = memoryview(len(payload).to_bytes(_LENGTH_BYTES, "big") + payload)
    os.set_blocking(file, False)
    poller = select.poll()
    poller.register(file, select.POLLOUT)
    while unsent and poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
        try:
            unsent = unsent[os.write(file, unsent) :]
        except BrokenPipeError:
            return


def read_assignment(file: int) -> Assignment:
    """Read an assignment from the pipe `file`; EOFError where the launcher ended before it was complete."""
    length = int.from_bytes(_read_exactly(file, _LENGTH_BYTES), "big")
    return msgspec.msgpack.decode(_read_exactly(file, length), type=Assignment)


def _read_exactly(file: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = os.read(file, min(count - len(data), 1 << 20))
        if not piece:
            raise EOFError("the launcher ended before it had sent this process its assignment")
        data += piece
    return bytes(data)
