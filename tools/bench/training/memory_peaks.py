"""Peak memory of every process of a training run, beside the bound that no process may exceed.

The bound: 0.45 of the weights and gradients of the whole model, and 300 MB. A process's peak is VmHWM of
/proc/PID/status, the most of its memory that was resident at once; it only grows, so looking often enough finds it.
"""

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ....errors import CutsetError
from ...task.load_task import TaskSpec, build_model, load_task
from ...units import bytes_text

SHARE = 0.45
BASE_BYTES = 300_000_000
LOOK_S = 0.05
TRANSFORMER = "cutset.models:transformer(layers=20, width=1280, heads=20, context=8, vocabulary=8192, batch=64)"
LAUNCHER = "launcher"
_COMMAND = (sys.executable, "-P", "-c", "from cutset.tools.commands.cli import main; main()")


@dataclass(frozen=True)
class Peaks:
    """parameters: of the whole model; weights_bytes: of those. peaks: bytes by process; seconds: of the whole run."""

    task: str
    parameters: int
    weights_bytes: int
    peaks: dict[str, int]
    seconds: float

    @property
    def bound_bytes(self) -> int:
        """What no process may exceed."""
        return math.floor(SHARE * 2 * self.weights_bytes) + BASE_BYTES

    @property
    def held(self) -> bool:
        """Whether none does."""
        return max(self.peaks.values()) <= self.bound_bytes


def measure(task: str, *, machines: int, rule: str, more: Sequence[str] = ()) -> Peaks:
    """Train a task in processes of its own, as `cutset train` does, and watch them; CutsetError where that fails.

    more: options of `cutset train`.
    """
    model = build_model(load_task(TaskSpec(task)), seed=0, device="meta")
    sizes = [(p.numel(), p.nbytes) for p in model.parameters()]
    with tempfile.TemporaryDirectory(prefix="cutset-memory-") as folder:
        options = (
            "train",
            task,
            "--machines",
            str(machines),
            "--rule",
            rule,
            "--no-baseline",
            "--out",
            f"{folder}/run",
        )
        start = time.monotonic()
        with (Path(folder) / "said").open("w+") as said:
            process = subprocess.Popen((*_COMMAND, *options, *more), stdout=said, stderr=said, stdin=subprocess.DEVNULL)
            peaks = _watched(process)
            said.seek(0)
            if process.returncode:
                raise CutsetError("E270", f"the run that was measured failed:\n{said.read()}", fix=" ".join(options))
        seconds = time.monotonic() - start
    return Peaks(task, sum(n for n, _ in sizes), sum(b for _, b in sizes), peaks, seconds)


def _watched(process: "subprocess.Popen[bytes]") -> dict[str, int]:
    """Peaks of a process and of those that it starts, until it ends, by the names of their roles."""
    peaks: dict[str, int] = {}
    while process.poll() is None:
        for pid in (process.pid, *_children(process.pid)):
            name = LAUNCHER if pid == process.pid else _role(pid)
            peak = _peak_bytes(pid)
            if name and peak is not None:
                peaks[name] = max(peak, peaks.get(name, 0))
        time.sleep(LOOK_S)
    return peaks


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has ended
        return []


def _role(pid: int) -> str:
    """The name of a role, which its command line ends with."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    return words[-1].decode() if b"cutset.runtime.launcher.child" in words else ""


def _peak_bytes(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def table(found: Peaks) -> str:
    """The peaks in words, largest first."""
    rows = [
        f"{name:14} {bytes_text(peak):>9} {peak / found.bound_bytes:6.0%} of the bound"
        for name, peak in sorted(found.peaks.items(), key=lambda pair: -pair[1])
    ]
    head = [
        f"{found.task}: {found.parameters / 1e6:.1f} M parameters, {bytes_text(found.weights_bytes)}",
        f"bound: {bytes_text(found.bound_bytes)} = {SHARE} x (weights + gradients) + {bytes_text(BASE_BYTES)}",
    ]
    verdict = "every process stays below the bound" if found.held else "a process exceeds the bound"
    return "\n".join([*head, *rows, f"{verdict}; {found.seconds:.0f} s"])


def as_data(found: Peaks) -> dict[str, Any]:
    """The peaks as plain data."""
    return {**asdict(found), "bound_bytes": found.bound_bytes, "held": found.held}
