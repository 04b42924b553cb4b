"""`cutset bench memory`: the peak memory of every process of a training run, compared with a bound.

The bound is 1.8 times what each worker would hold if it had an equal part of the weights and gradients, plus 300 MB, or
one that is stated. The peak of a process is VmHWM in
/proc/PID/status, the largest part of its memory that was resident at once. It only grows, so polling finds it.
"""

import json
import math
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ....errors import CutsetError
from ....runtime.hosts.role_process import PROCESS_TITLE
from ...run_folder import METRICS
from ...task.load_task import TaskSpec, build_model, load_task
from ...units import format_bytes
from ..bench_table import BenchTable, Column

FACTOR = 1.8
BASE_BYTES = 300_000_000
POLL_S = 0.05
SHOWN_LOSSES = 6
TRANSFORMER = "cutset.models:transformer(layers=20, width=1280, heads=20, context=8, vocabulary=8192, batch=64)"
LAUNCHER = "launcher"
_COMMAND = (sys.executable, "-P", "-c", "from cutset.tools.commands.cli import main; main()")


@dataclass(frozen=True)
class MemoryPeaks:
    """The peaks of a run in bytes, by process.

    parameters, weights_bytes: of the whole model; machines: that share it. limit: the stated bound, in bytes; None for
    the usual one. losses: of the steps that the run folder has. seconds: of the whole run.
    """

    task: str
    parameters: int
    weights_bytes: int
    peaks: dict[str, int]
    seconds: float
    machines: int = 4
    limit: int | None = None
    losses: tuple[float, ...] = ()

    @property
    def bound_bytes(self) -> int:
        """The memory that no process may exceed."""
        if self.limit is not None:
            return self.limit
        return math.floor(FACTOR * 2 * self.weights_bytes / self.machines) + BASE_BYTES

    @property
    def held(self) -> bool:
        """Whether no process exceeds the bound."""
        return max(self.peaks.values()) <= self.bound_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the peaks and the bound as plain data for JSON."""
        return {**asdict(self), "bound_bytes": self.bound_bytes, "held": self.held}


def measure(
    task: str, *, machines: int, optimizer: str, options: Sequence[str] = (), limit: int | None = None
) -> MemoryPeaks:
    """Train a task in processes of its own, as `cutset train` does, and watch their memory.

    options: more options of `cutset train`. limit: bytes that no process may exceed. Raises CutsetError (E101) if the
    training fails.
    """
    model = build_model(load_task(TaskSpec(task)), seed=0, device="meta")
    sizes = [(p.numel(), p.nbytes) for p in model.parameters()]
    with tempfile.TemporaryDirectory(prefix="cutset-memory-") as folder:
        command = ["train", task, "--machines", str(machines), "--optimizer", optimizer, "--no-baseline", *options]
        start = time.monotonic()
        with (Path(folder) / "output").open("w+") as output:
            process = subprocess.Popen(
                (*_COMMAND, *command, "--out", f"{folder}/run"), stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
            peaks = _watch(process)
            output.seek(0)
            if process.returncode:
                fix = shlex.join(("cutset", *command))
                raise CutsetError("E101", f"the measured training failed:\n{output.read()}", fix=fix)
        seconds, losses = time.monotonic() - start, _read_losses(Path(folder) / "run" / METRICS)
    parameters, weights = sum(n for n, _ in sizes), sum(b for _, b in sizes)
    return MemoryPeaks(task, parameters, weights, peaks, seconds, machines, limit, losses)


def _read_losses(path: Path) -> tuple[float, ...]:
    events = [json.loads(line) for line in path.read_text().splitlines()]
    return tuple(one["loss"] for one in events if one["event"] == "step" and one["loss"] is not None)


def _watch(process: "subprocess.Popen[bytes]") -> dict[str, int]:
    """Return the peaks of a process and of its roles, by their names, once it has ended."""
    peaks: dict[str, int] = {}
    while process.poll() is None:
        servers = _list_children(process.pid)  # of which the roles are forks
        for pid in (process.pid, *(role for server in servers for role in _list_children(server))):
            name = LAUNCHER if pid == process.pid else _read_role(pid)
            peak = _read_peak(pid)
            if name and peak is not None:
                peaks[name] = max(peak, peaks.get(name, 0))
        time.sleep(POLL_S)
    return peaks


def _list_children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # the process has ended
        return []


def _read_role(pid: int) -> str:
    """Return the name of a role, with which the title of its process ends; "" for any other process."""
    try:
        title, _, name = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").rpartition(" ")
    except OSError:
        return ""
    return name if title == PROCESS_TITLE else ""


def _read_peak(pid: int) -> int | None:
    """Return the peak memory of a process in bytes; None if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def tabulate(measured: MemoryPeaks) -> BenchTable[tuple[str, int]]:
    """Return the table of the peaks, largest first."""
    columns: list[Column[tuple[str, int]]] = [
        Column("process", value=lambda row: row[0], align="left"),
        Column("peak memory", value=lambda row: row[1], format=format_bytes),
        Column("of the bound", value=lambda row: row[1] / measured.bound_bytes, format="{:.0%}".format),
    ]
    size, bound = format_bytes(measured.weights_bytes), format_bytes(measured.bound_bytes)
    together = format_bytes(sum(measured.peaks.values()))
    usual = f" = {FACTOR} x (weights + gradients) / {measured.machines} + {format_bytes(BASE_BYTES)}"
    losses = f"Losses, first to last: {', '.join(f'{loss:.4g}' for loss in _pick(measured.losses))}."
    verdict = "Every process stays below the bound" if measured.held else "A process exceeds the bound"
    return BenchTable(
        columns,
        sorted(measured.peaks.items(), key=lambda row: -row[1]),
        title=f"{measured.task}: {measured.parameters / 1e6:.1f} M parameters, {size}",
        notes=(
            f"Bound: {bound}{usual if measured.limit is None else ''}.",
            f"{verdict}; the run took {measured.seconds:.0f} s.",
            f"All peaks together: {together}, in which memory that processes share counts more than once.",
            *([losses] if measured.losses else []),
        ),
    )


def _pick(losses: Sequence[float]) -> Sequence[float]:
    """Return a few of the losses, in order, the first and the last among them."""
    return [*losses[:-1][:: max(1, len(losses) // SHOWN_LOSSES)], *losses[-1:]]
