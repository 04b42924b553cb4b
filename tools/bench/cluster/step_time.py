"""`cutset bench step`: what a step costs beyond torch's own work, uncut and cut over processes of this machine.

A round measures each way to compute a step once, one after the other, in processes of as many threads as a worker of
the cut has. Steps follow each other at once, as in training.
"""

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ....partition.dataflow.cut import one_machine_cut
from ....partition.dataflow.lowering import lower_cut
from ....runtime.hosts.versions import read_cores
from ....runtime.worker.program import programs
from ...probe.measure_step import StepTimes, measure_programs, measure_uncut
from ...task.capture_task import capture_task
from ...task.load_task import TaskSpec
from ...task.plan_request import PlanRequest
from ...task.plan_task import load_cut, plan_task
from ...units import format_bytes, format_seconds
from ..bench_table import BenchTable, Column

PLAIN, UNCUT = "plain torch, one process", "our program, one process"
GOAL_S = 30e-6  # overhead per operator, forward and backward


@dataclass
class StepRow:
    """One way to compute a step. operators: of the model's graph. plain: the row of plain torch, for comparison.

    medians: of each round, the seconds of its median step. bytes_sent: by all workers in a step.
    """

    how: str
    operators: int
    plain: "StepRow | None" = None
    medians: list[float] = field(default_factory=list)
    bytes_sent: int = 0

    def add(self, times: StepTimes) -> None:
        """Add a round."""
        self.medians.append(times.median_s)
        self.bytes_sent = times.bytes_sent

    @property
    def step_s(self) -> float:
        """The median over rounds."""
        return statistics.median(self.medians)

    @property
    def ratio(self) -> float | None:
        """The median over rounds of the step beside that of plain torch; None for plain torch."""
        return None if self.plain is None else statistics.median(o / p for o, p in self._pairs(self.plain))

    @property
    def overhead_s(self) -> float | None:
        """What an operator takes beyond plain torch in the same round, the median; None where messages are in it."""
        if self.plain is None or self.bytes_sent:
            return None
        return statistics.median(own - plain for own, plain in self._pairs(self.plain)) / self.operators

    def _pairs(self, plain: "StepRow") -> list[tuple[float, float]]:
        return list(zip(self.medians, plain.medians, strict=True))


def measure(
    spec: TaskSpec,
    *,
    machines: int,
    rounds: int,
    steps: int,
    on_progress: Callable[[str], object] = lambda line: None,
) -> list[StepRow]:
    """Return the steps of a task by plain torch, by the uncut program, and cut over processes as a plan says."""
    whole = capture_task(spec)
    planned = plan_task(whole, spec, PlanRequest(machines=machines))
    cut = programs(lower_cut(planned.capture.train, load_cut(planned.capture, planned.placement)), training=True)
    uncut = programs(lower_cut(whole.train, one_machine_cut(whole.train)), training=True)
    operators = len(whole.train.ops)
    plain = StepRow(PLAIN, operators)
    rows = [plain, StepRow(UNCUT, operators, plain), StepRow(f"cut over {len(cut)} processes", operators, plain)]
    for number in range(rounds):
        plain.add(measure_uncut(spec, whole, steps=steps, workers=machines, pauses=False))
        rows[1].add(measure_programs(spec, whole, uncut, steps=steps, workers=machines, pauses=False))
        rows[2].add(measure_programs(spec, planned.capture, cut, steps=steps, pauses=False))
        took = ", ".join(f"{row.how} {format_seconds(row.medians[-1])}" for row in rows)
        on_progress(f"round {number + 1} of {rounds}: {took}")
    return rows


COLUMNS: tuple[Column[StepRow], ...] = (
    Column("step", "how", align="left"),
    Column("median", "step_s", format_seconds),
    Column("of plain torch", "ratio", "{:.2f}".format),
    Column("operators", "operators"),
    Column("overhead each", "overhead_s", lambda seconds: f"{1e6 * seconds:.1f} us"),
    Column("sent", "bytes_sent", format_bytes),
    Column("", "medians"),
)


def tabulate(rows: Sequence[StepRow], *, task: str) -> BenchTable[StepRow]:
    """Return the table of the steps."""
    notes = (
        "A step is forward and backward: the median of each round's median step. Overhead: what an operator takes "
        f"beyond plain torch, forward and backward, in the same round; the goal is {1e6 * GOAL_S:.0f} us.",
        "Plain torch seeds its generator for every step, as training does; our program only where something is drawn.",
        f"{read_cores()} cores, load {os.getloadavg()[0]:.1f} at the end.",
    )
    return BenchTable(COLUMNS, rows, title=task, notes=notes, facts={"task": task})
