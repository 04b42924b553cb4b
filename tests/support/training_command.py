"""`cutset train` as a process of its own, and what can be known of it from outside.

Every process of a run inherits a mark in its environment, by which those that are left over would be found.
"""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from busy import stretch
from places import USER_MODELS

from cutset.runtime.hosts.role_process import PROCESS_TITLE

GOOD = USER_MODELS / "good.py"
CUTSET = Path(sys.executable).with_name("cutset")
MARK = "CUTSET_TEST_MARK"
START_S, END_S, PROMISED_S = 60.0, 20.0, 10.0
LOST, INTERRUPTED, TERMINATED = 6, 130, 143


class Run:
    """`cutset train` as a process of its own, and what can be known of it from outside."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.mark = uuid.uuid4().hex
        self.files = folder / "tmp"
        self.files.mkdir()
        environment = {**os.environ, MARK: self.mark, "TMPDIR": str(self.files)}
        options = ["--no-baseline", "--out", folder / "run", *arguments]
        command = [str(CUTSET), "train", *map(str, options)]
        self.process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environment,
            # What a shell starts in the background ignores interrupts, and so would all that it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        self.said = ""

    def wait_for(self, words: str, *, timeout_s: float = START_S) -> None:
        """Read stderr until it says so."""
        deadline = time.monotonic() + stretch(timeout_s)
        while words not in self.said:
            assert self._read(deadline), f"it ended or said nothing of {words!r} in time:\n{self.said}"

    def end(self, *, timeout_s: float = END_S) -> int:
        """The exit code, when it has said all and ended."""
        deadline = time.monotonic() + stretch(timeout_s)
        while self._read(deadline):
            pass
        return self.process.wait(max(0.0, deadline - time.monotonic()))

    def processes(self) -> dict[int, str]:
        """Every process of the run that is alive: its command line by number."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                mark = f"{MARK}={self.mark}".encode()
                if mark in (folder / "environ").read_bytes().split(b"\0") and _alive(folder):
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
        return found

    def pid(self, role: str) -> int:
        """The process of a role."""
        (pid,) = [pid for pid, line in self.processes().items() if line == f"{PROCESS_TITLE} {role}"]
        return pid

    def maps(self) -> list[str]:
        """What memory each process has."""
        return [Path(f"/proc/{pid}/maps").read_text() for pid in self.processes()]

    def listening(self) -> set[str]:
        """Sockets of the run that listen, by inode, which no other socket has at the same time."""
        mine = set()
        for pid in self.processes():
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    mine |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(file)))
        return mine & listening()

    def close(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _read(self, deadline: float) -> bool:
        """Wait for more of stderr; False at its end, or when time is up."""
        assert self.process.stderr is not None
        if not select.select([self.process.stderr], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        more = self.process.stderr.read()
        self.said += (more or b"").decode()
        return bool(more)


def _alive(folder: Path) -> bool:
    return (folder / "stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")


def listening() -> set[str]:
    """Inodes of all TCP sockets that listen."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            found |= {row[9] for row in rows if row[3] == "0A"}
    return found


def gone(pids: list[int], *, timeout_s: float) -> bool:
    """Whether all of these processes end in time."""
    deadline = time.monotonic() + stretch(timeout_s)
    for pid in pids:
        try:
            end = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([end], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return False
        finally:
            os.close(end)
    return True


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a run; at the end of the test it is over, and nothing of it is left."""
    runs: list[Run] = []

    def started(*arguments: object) -> Run:
        runs.append(Run(tmp_path, *arguments))
        return runs[-1]

    yield started
    try:
        for run in runs:
            assert run.processes() == {}
            assert [file.name for file in run.files.iterdir() if not file.name.startswith("torchinductor")] == []
    finally:
        for run in runs:
            run.close()


@pytest.fixture
def training(start: Start) -> Run:
    """Two machines and a shard in the midst of a training that would take hours; a loss is not to be made good."""
    run = start(f"{GOOD}:task", "--machines", 2, "--shards", 1, "--epochs", 1_000_000, "--lr", 0.001, "--restarts", 0)
    run.wait_for("downpour: ")
    return run


def ended(run: Run, sockets: set[str], since: float) -> int:
    """The exit code of a run that ended in the promised time, with all its sockets."""
    assert len(sockets) == 4  # of the launcher, two workers and a shard
    code = run.end()
    assert time.monotonic() - since < stretch(PROMISED_S)
    assert not sockets & listening()
    return code
