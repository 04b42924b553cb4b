"""`cutset bench plan --scale`: CPU seconds and memory that planning takes, against operators and machines.

Each plan is made in a process of its own, whose memory is measured at its end.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from ....partition.cluster.machines import uniform_cluster
from ....partition.placement.from_plan import plan_placement
from ...task.capture_task import capture_task
from ...task.load_task import TaskSpec
from ...units import format_bytes, format_seconds
from ..bench_table import BenchTable, Column

KIB = 1024
Tell = Callable[[str], None]


def _transformer(layers: int) -> tuple[str, str]:
    arguments = f"layers={layers}, width=1024, heads=16, context=1024, batch=8"
    return f"transformer, layers {layers}", f"cutset.models:transformer({arguments})"


# Name and task, and the numbers of machines that it is planned for.
CASES: tuple[tuple[tuple[str, str], tuple[int, ...]], ...] = (
    (_transformer(2), (4, 16, 64)),
    (_transformer(12), (4, 16, 64)),
    (_transformer(96), (32, 64)),
    (("local_1700m", "cutset.models:local_1700m"), (8, 32, 128, 512)),
)


class PlanningTime(msgspec.Struct, frozen=True):
    """What planning of a net for some machines takes. cpu_s: with the capture of its graph."""

    net: str
    operators: int
    machines: int
    capture_s: float
    cpu_s: float
    peak_bytes: int
    plan: str
    step_s: float


def measure_planning(tell: Tell, cases: Sequence[tuple[tuple[str, str], Sequence[int]]] = CASES) -> list[PlanningTime]:
    """Plan every net for every number of machines, one after the other. tell: called with a line for each."""
    found = list[PlanningTime]()
    for (net, task), counts in cases:
        for machines in counts:
            command = [sys.executable, "-P", "-m", __name__, net, task, str(machines)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            row = msgspec.json.decode(output, type=PlanningTime)
            tell(f"{net} on {machines} machines: {format_seconds(row.cpu_s)}, {format_bytes(row.peak_bytes)}")
            found.append(row)
    return found


def _plan_once(net: str, task: str, machines: int) -> PlanningTime:
    start_s = time.process_time()
    graph = capture_task(TaskSpec(task)).train
    captured_s = time.process_time()
    placement = plan_placement(graph, uniform_cluster(machines), model=task)
    return PlanningTime(
        net,
        len(graph.ops),
        machines,
        captured_s - start_s,
        time.process_time() - start_s,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
        placement.winner,
        placement.predicted.step_s,
    )


def tabulate(rows: Sequence[PlanningTime]) -> BenchTable[PlanningTime]:
    """Return the results as a table."""
    columns = [
        Column[PlanningTime]("net", "net", align="left"),
        Column[PlanningTime]("operators", "operators"),
        Column[PlanningTime]("machines", "machines"),
        Column[PlanningTime]("capture", "capture_s", format_seconds),
        Column[PlanningTime]("in all", "cpu_s", format_seconds),
        Column[PlanningTime]("memory", "peak_bytes", format_bytes),
        Column[PlanningTime]("plan", "plan", align="left"),
        Column[PlanningTime]("step", "step_s", format_seconds),
    ]
    notes = ["capture, in all: CPU seconds. memory: the most that the process held, torch with it."]
    return BenchTable(columns, rows, title="Time to plan", notes=notes)


if __name__ == "__main__":
    net, task, machines = sys.argv[1:]
    sys.stdout.buffer.write(msgspec.json.encode(_plan_once(net, task, int(machines))))
