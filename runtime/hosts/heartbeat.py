"""Heartbeats: `RoleProgress` is what a role reports of its progress, `HeartbeatThread` sends it to the launcher.

The heartbeat of libzmq (peer_connection.py) would be answered even by a process whose interpreter hangs; this one needs
a live interpreter, as its thread is one of Python.
"""

import threading
from dataclasses import dataclass
from types import TracebackType

from ..channel.message import LAUNCHER, Message, encode
from ..channel.peer_connection import PeerConnection
from ..channel.zmq_channel import HEARTBEAT


@dataclass
class RoleProgress:
    """What a role reports of its progress; the role sets `value` as it works.

    value: anything short that changes as the work goes on, a step number or "epoch 2 step 31"; None while the role
    reports nothing. A role that has reported a value and does not change it for too long counts as stuck.
    """

    value: int | str | None = None


class HeartbeatThread:
    """Sends a heartbeat with the progress over `connection` every `interval_s` seconds, from a thread, while entered.

    The connection is its own: sequence numbers of heartbeats are apart from those of the role's messages. It is closed
    at the end.
    """

    def __init__(
        self, progress: RoleProgress, connection: PeerConnection, *, job: str, name: str, interval_s: float
    ) -> None:
        self.progress = progress
        self.interval_s = interval_s
        self._connection = connection
        self._job = job
        self._sender = name + HEARTBEAT
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cutset-heartbeat", daemon=True)

    def __enter__(self) -> "HeartbeatThread":
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
                message = Message("heartbeat", body={"progress": self.progress.value})
                self._connection.send(encode(message, job=self._job, sender=self._sender, sequence=sequence))
                sequence += 1
                if self._ended.wait(self.interval_s):
                    return
        finally:
            self._connection.close()

    def __repr__(self) -> str:
        return f"HeartbeatThread({self._sender} to {LAUNCHER}, {self.progress})"
