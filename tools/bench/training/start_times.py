"""`cutset bench start`: the seconds from a command to its first training step, and how long commands take that plan.

Each training is a process of its own. When what happened stands in its metrics.jsonl: "begin" once the run is planned,
"roles" once the processes of its first part know each other, "step" once one of them has made a step. That part is the
one-process run which the others are compared with, unless `--no-baseline` leaves it out. Beside them stands a process
of plain torch that makes one step.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from statistics import median

from ....errors import CutsetError
from ...run_folder import METRICS
from ...units import format_seconds
from ..bench_table import BenchTable, Column

TASK = "cutset.models:digits"
RUNS: tuple[tuple[str, ...], ...] = ((), ("--replicas", "2"), ("--machines", "2"), ("--replicas", "2", "--no-baseline"))
PLAIN_TORCH = "plain torch, one step"
GOAL_S = 3.0  # to the first step of the digits, on two quiet cores
MOMENTS = ("begin", "roles", "step")
HEADINGS = {"planned": "planned", "processes": "started", "first step, or end": "stepped", "CPU": "cpu"}
_CUTSET = (sys.executable, "-P", "-c", "from cutset.tools.commands.cli import run_program; run_program()")
_PLAIN = (sys.executable, "-P", "-m", "cutset.tools.bench.training.plain_first_step")
Tell = Callable[[str], None]


@dataclass(frozen=True)
class StartTimes:
    """Seconds after a command began, in each round: planned, with all processes started, and with a step made.

    A command that does not train has the first two empty, and the last is its end. cpu: CPU seconds of the whole
    command with all of its processes.
    """

    command: str
    planned: tuple[float, ...]
    started: tuple[float, ...]
    stepped: tuple[float, ...]
    cpu: tuple[float, ...]


def measure(tell: Tell, *, task: str = TASK, rounds: int, runs: Sequence[Sequence[str]] = RUNS) -> list[StartTimes]:
    """Run every command once in each round; what came before the first round is not counted, as it fills caches.

    tell: called with a line for each. Raises CutsetError (E101) where a command fails.
    """
    commands = [
        [PLAIN_TORCH, task],
        ["--help"],
        ["plan", task],
        *(["train", task, *options, "--epochs", "1"] for options in runs),
    ]
    found: list[list[tuple[list[float], float]]] = [[] for _ in commands]
    for number in range(-1, rounds):
        for rows, command in zip(found, commands, strict=True):
            row = _time_command(command)
            if number >= 0:
                rows.append(row)
                tell(f"{_describe(command)}: {', '.join(map(format_seconds, row[0]))}")
    return [_gather(command, rows) for command, rows in zip(commands, found, strict=True)]


def _gather(command: Sequence[str], rows: Sequence[tuple[list[float], float]]) -> StartTimes:
    moments = list(zip(*(at for at, _ in rows), strict=True))
    planned, started = moments[:2] if len(moments) == len(MOMENTS) else ((), ())
    return StartTimes(_describe(command), planned, started, moments[-1], tuple(cpu_s for _, cpu_s in rows))


def _describe(command: Sequence[str]) -> str:
    return PLAIN_TORCH if command[0] == PLAIN_TORCH else " ".join(command)


def _time_command(command: Sequence[str]) -> tuple[list[float], float]:
    """Return when what happened, in seconds after the command began, and its CPU seconds."""
    with tempfile.TemporaryDirectory(prefix="cutset-start-") as folder:
        out = Path(folder) / "run"
        options = ["--out", str(out)] if command[0] == "train" else []
        program = [*_PLAIN, *command[1:]] if command[0] == PLAIN_TORCH else [*_CUTSET, *command, *options]
        before, begin = _children_cpu_s(), time.time()
        done = subprocess.run(program, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        end, cpu_s = time.time(), _children_cpu_s() - before
        if done.returncode:
            raise CutsetError("E101", f"the measured command failed:\n{done.stderr}", fix=" ".join(command))
        times = find_moments((out / METRICS).read_text()) if options else [end]
    return [at - begin for at in times], cpu_s


def find_moments(metrics: str) -> list[float]:
    """Return when a run was planned, when its first processes were started, and when the first step was made.

    metrics: the lines of its metrics.jsonl.
    """
    first: dict[str, float] = {}
    for line in metrics.splitlines():
        event = json.loads(line)
        first.setdefault(event["event"], event["time"])
    return [first[name] for name in MOMENTS]


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tabulate(rows: Sequence[StartTimes]) -> BenchTable[StartTimes]:
    """Return the medians as a table."""
    columns = [
        Column[StartTimes]("command", "command", align="left"),
        *(_make_column(heading, key) for heading, key in HEADINGS.items()),
        *(Column[StartTimes]("", f"{key}_rounds", value=attrgetter(key)) for key in HEADINGS.values()),
    ]
    notes = ["Medians of seconds after the command began. CPU: of the whole command, with training of one epoch."]
    return BenchTable(columns, rows, title="Time to the first step", notes=notes)


def _make_column(heading: str, key: str) -> Column[StartTimes]:
    """Return the column of the medians of one series of seconds."""

    def find_median(row: StartTimes) -> float | None:
        values: Sequence[float] = getattr(row, key)
        return median(values) if values else None

    return Column(heading, f"{key}_s", format_seconds, value=find_median)
