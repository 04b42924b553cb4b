"""`cutset bench plan --measure`: predicted and measured seconds of a step.

Bundled tasks are each cut over two workers of this machine, after a probe. What a step is says `probe/measure_step.py`.
All tasks are timed once in each round, so that a disturbance hits all of them alike.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....partition.cluster.machines import Cluster
from ....partition.placement.from_plan import plan_placement
from ....partition.placement.placement_file import Placement
from ...probe.measure_step import measure_placement
from ...task.capture_task import capture_task
from ...task.load_task import TaskSpec
from ...units import format_seconds
from ..bench_table import BenchTable, Column

TASKS = ("digits", "digits_local", "mnist", "mnist_conv")
ROUNDS = 5
STEPS = 100
Tell = Callable[[str], None]


@dataclass(frozen=True)
class PredictionResult:
    """Predicted and measured seconds of a step of a task. rounds: the medians measured, in order."""

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


def measure_predictions(cluster: Cluster, tell: Tell, tasks: Sequence[str] = TASKS) -> list[PredictionResult]:
    """Compare prediction and measurement of each task on the machines of a probed cluster, workers of this host.

    tell: is called with a line of progress now and then.
    """
    specs = [TaskSpec(f"cutset.models:{task}") for task in tasks]
    placements = [_plan(spec, cluster) for spec in specs]
    rounds: list[list[float]] = [[] for _ in specs]
    for number in range(ROUNDS):
        for spec, placement, times in zip(specs, placements, rounds, strict=True):
            times.append(measure_placement(spec, placement, STEPS))
            tell(f"round {number + 1} of {ROUNDS}: {spec.model} {format_seconds(times[-1])}")
    return [
        PredictionResult(spec.model, placement.winner, len(cluster), placement.predicted.step_s, tuple(times))
        for spec, placement, times in zip(specs, placements, rounds, strict=True)
    ]


def _plan(spec: TaskSpec, cluster: Cluster) -> Placement:
    return plan_placement(capture_task(spec).train, cluster, model=spec.model)


COLUMNS: tuple[Column[PredictionResult], ...] = (
    Column("task", "task", align="left"),
    Column("plan", "plan", align="left"),
    Column("machines", "machines"),
    Column("predicted", "predicted_s", format_seconds),
    Column("measured", "measured_s", format_seconds),
    Column("predicted / measured", "ratio", "{:.2f}".format),
    Column("", "rounds"),
)


def tabulate(rows: Sequence[PredictionResult]) -> BenchTable[PredictionResult]:
    """Return the table of predictions and measurements."""
    worst = max(rows, key=lambda row: max(row.ratio, 1 / row.ratio))
    note = f"A step is forward and backward. The worst prediction is that for {worst.task}: {worst.ratio:.2f}."
    return BenchTable(COLUMNS, rows, notes=(note,))
