"""Heartbeats go on, whatever a role says of its work."""

import json
import subprocess
import sys

import pytest

from cutset.runtime.channel.message import decode
from cutset.runtime.hosts.heartbeat import HeartbeatThread, RoleProgress


class Connection:
    """Keeps what is sent, and lets the thread of heartbeats end after some."""

    def __init__(self, count: int) -> None:
        self.sent, self.count, self.thread = list[object](), count, None

    def send(self, frames: object) -> None:
        self.sent.append(frames)
        if len(self.sent) == 2 and self.thread is not None:
            self.thread.progress.status = {"step": 7}
        if len(self.sent) >= self.count and self.thread is not None:
            self.thread._ended.set()

    def close(self) -> None:
        pass


def test_a_status_that_cannot_be_sent_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = RoleProgress("step 3", {"step": object()})
    connection = Connection(4)
    thread = HeartbeatThread(progress, connection, job="job", name="worker-0.0", interval_s=0.01)  # type: ignore[arg-type]
    connection.thread = thread  # type: ignore[assignment]
    with thread:
        thread._thread.join()
    bodies = [decode(frames, job="job")[1].body for frames in connection.sent]  # type: ignore[arg-type]
    assert [body["progress"] for body in bodies] == ["step 3"] * 4
    assert [body["status"] if body["status"] is None else body["status"]["step"] for body in bodies] == [
        None,
        None,
        7,
        7,
    ]
    assert capsys.readouterr().err.count("Traceback") == 1, "it is said once"


@pytest.mark.run
def test_what_a_process_takes() -> None:
    """Measured in a process of its own: one that has run other tests has free memory to take again."""
    program = (
        "import json, mmap; from cutset.runtime.hosts.heartbeat import measure_process as m\n"
        "before = m(); pages = mmap.mmap(-1, 1 << 25); pages.write(b'x' * (1 << 25)); taken = m()\n"
        "while (after := m())['cpu_s'] <= before['cpu_s']: pass\n"
        "pages.close(); print(json.dumps([before, taken, after]))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True, timeout=120)
    before, taken, after = json.loads(said.stdout)
    assert before["rss"] > 1 << 22
    assert taken["rss"] - before["rss"] > (1 << 25) / 2
    assert after["beat_s"] >= before["beat_s"]
    assert after["cpu_s"] > before["cpu_s"]
