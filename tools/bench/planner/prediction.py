"""Predicted and measured seconds of a step: bundled tasks, each cut over two workers on this machine, after a probe.

A step is that of measure.py. The rounds of all tasks take turns, so that a busy minute hits all of them alike.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from ....partition.cluster.machines import Cluster
from ....partition.placement.placement_file import Placement
from ....partition.planner.planner import plan
from ...report.console import make_console, print_columns
from ...task.load_task import TaskSpec
from ...task.plan_task import captured
from ...units import seconds_text
from .measure_step import measured_step_s

TASKS = ("digits", "digits_local", "mnist", "mnist_conv")
ROUNDS = 5
STEPS = 100
Tell = Callable[[str], None]


@dataclass(frozen=True)
class PredictionRow:
    """Seconds of a step of a task. rounds: the medians measured, in order."""

    task: str
    plan: str
    machines: int
    predicted_s: float
    rounds: tuple[float, ...]

    @property
    def measured_s(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_s / self.measured_s


def rows_of(cluster: Cluster, tell: Tell, tasks: Sequence[str] = TASKS) -> list[PredictionRow]:
    """One row a task, on the machines of a probed cluster, which are workers on this host. tell: hears of progress."""
    specs = [TaskSpec(f"cutset.models:{task}") for task in tasks]
    placements = [_planned(spec, cluster) for spec in specs]
    rounds: list[list[float]] = [[] for _ in specs]
    for number in range(ROUNDS):
        for spec, placement, times in zip(specs, placements, rounds, strict=True):
            times.append(measured_step_s(spec, placement, STEPS))
            tell(f"round {number + 1} of {ROUNDS}: {spec.model} {seconds_text(times[-1])}")
    return [
        PredictionRow(spec.model, placement.winner, len(cluster), placement.predicted.step_s, tuple(times))
        for spec, placement, times in zip(specs, placements, rounds, strict=True)
    ]


def _planned(spec: TaskSpec, cluster: Cluster) -> Placement:
    return plan(captured(spec).train, cluster, model=spec.model)


def as_data(row: PredictionRow) -> dict[str, Any]:
    """A row for JSON."""
    return {**asdict(row), "measured_s": row.measured_s, "ratio": row.ratio}


def print_rows(rows: Sequence[PredictionRow]) -> None:
    """Print predicted beside measured."""
    console = make_console()
    columns = ("task", "plan", "machines", "predicted", "measured", "predicted / measured")
    cells = [
        (r.task, r.plan, str(r.machines), seconds_text(r.predicted_s), seconds_text(r.measured_s), f"{r.ratio:.2f}")
        for r in rows
    ]
    print_columns(console, columns, cells, left=2)
    furthest = max(rows, key=lambda row: max(row.ratio, 1 / row.ratio))
    console.print(Text(f"Of a step, forward and backward. Furthest off: {furthest.task}, {furthest.ratio:.2f}."))
