"""`cutset train` as a process of its own that is killed, with all that it has started, in the midst of training."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

CUTSET = Path(sys.executable).with_name("cutset")
MARK = "CUTSET_TEST_MARK"


def train_and_kill(*arguments: object, at_step: int, once: Callable[[], bool] = lambda: True) -> int:
    """Train until a line of progress says at least this step, and kill all at once; the step that it said.

    once: not before this is so, at a line of progress.
    """
    mark = uuid.uuid4().hex
    command = [str(CUTSET), "train", *map(str, arguments)]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env={**os.environ, MARK: mark}, text=True
    )
    assert process.stderr is not None
    said, step = "", 0
    try:
        while step < at_step or not once():
            line = process.stderr.readline()
            assert line, f"it ended before step {at_step}:\n{said}"
            said += line
            found = re.search(r", (\d+) of \d+", line)
            step = int(found[1]) if found else step
    finally:
        _kill(mark)
        process.communicate()
    return step


def _kill(mark: str) -> None:
    """Kill every process with this mark, and wait for their end."""
    while found := [pid for pid in map(int, (p.name for p in Path("/proc").glob("[0-9]*"))) if _marked(pid, mark)]:
        ends = []
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                ends.append(os.pidfd_open(pid))
                os.kill(pid, signal.SIGKILL)
        for end in ends:
            with contextlib.suppress(ChildProcessError):
                _await(end)
            os.close(end)


def _await(end: int) -> None:
    assert select.select([end], [], [], 10.0)[0], "it was killed and did not end"


def _marked(pid: int, mark: str) -> bool:
    """Whether it is alive and has the mark."""
    folder = Path("/proc", str(pid))
    try:
        alive = (folder / "stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
        return alive and f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
