"""Heartbeats: `RoleProgress` is what a role reports of its progress, `HeartbeatThread` sends it to the launcher.

The heartbeat of libzmq (peer_connection.py) would be answered even by a process whose interpreter hangs; this one needs
a live interpreter, as its thread is one of Python.
"""

import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from ..channel.message import LAUNCHER, Message, encode
from ..channel.peer_connection import PeerConnection
from ..channel.zmq_channel import HEARTBEAT
from ..held_memory import read_resident_bytes


@dataclass
class RoleProgress:
    """What a role reports of its progress; the role sets `value` as it works.

    value: anything short that changes as the work goes on, a step number or "epoch 2 step 31"; None while the role
    reports nothing. A role that has reported a value and does not change it for too long counts as stuck.
    status: plain data on how the work goes, for people. The role puts a new one in its place, about once a second, as
    another thread sends it.
    """

    value: int | str | None = None
    status: Mapping[str, Any] = field(default_factory=dict)


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
        self._sender = name + HEARTBEAT
        self._job = job
        self._has_complained = False
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
                self._connection.send(self._make_beat(sequence))
                sequence += 1
                if self._ended.wait(self.interval_s):
                    return
        finally:
            self._connection.close()

    def _make_beat(self, sequence: int) -> list[Any]:
        """Return a heartbeat; one without a status where that cannot be told, for the role lives all the same."""
        body: dict[str, Any] = {"progress": self.progress.value, "status": None}

        def make(body: dict[str, Any]) -> list[Any]:
            return encode(Message("heartbeat", body=body), job=self._job, sender=self._sender, sequence=sequence)

        try:
            return make(body | {"status": {**self.progress.status, **measure_process()}})
        except Exception:
            if not self._has_complained:
                self._has_complained = True
                traceback.print_exc()  # into the log of the role
            return make(body)

    def __repr__(self) -> str:
        return f"HeartbeatThread({self._sender} to {LAUNCHER}, {self.progress})"


def measure_process() -> dict[str, float]:
    """Return what this process has taken so far: "cpu_s" of all its threads, and "rss", its memory now in bytes.

    "beat_s": when, by a clock of this process.
    """
    beat_s, cpu_s = round(time.monotonic(), 3), round(time.process_time(), 3)
    return {"beat_s": beat_s, "cpu_s": cpu_s, "rss": read_resident_bytes()}
