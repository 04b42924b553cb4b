"""`Beacon`: what a role tells of its progress, and `Pulse`: the thread that sends it to the launcher again and again.

The heartbeats of libzmq would be answered even by a process whose interpreter hangs; these need a live one.
"""

import threading
from dataclasses import dataclass
from types import TracebackType

from .assignment import LAUNCHER
from ..channel.link import Link
from ..channel.message import Message, encode
from ..channel.zmq_channel import BEACON


@dataclass
class Beacon:
    """progress: anything short that changes as the work goes on, a step or "epoch 2 step 31"; None: it does not tell.

    A role that tells its progress once and then stands still for too long is held for stuck.
    """

    progress: int | str | None = None


class Pulse:
    """Sends the beacon through `link` every `interval_s` seconds from a thread, while entered; then closes the link."""

    def __init__(self, beacon: Beacon, link: Link, *, job: str, name: str, interval_s: float) -> None:
        self.beacon = beacon
        self.interval_s = interval_s
        self._link = link
        self._job = job
        self._sender = name + BEACON
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cutset-pulse", daemon=True)

    def __enter__(self) -> "Pulse":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        sequence = 0
        try:
            while True:
                message = Message("beacon", body={"progress": self.beacon.progress})
                self._link.send(encode(message, job=self._job, sender=self._sender, sequence=sequence))
                sequence += 1
                if self._ended.wait(self.interval_s):
                    return
        finally:
            self._link.close()

    def __repr__(self) -> str:
        return f"Pulse({self._sender} to {LAUNCHER}, {self.beacon})"
