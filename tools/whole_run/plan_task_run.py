"""Plans a whole run of a task: how many replicas, of how many machines each."""

import shlex
from dataclasses import dataclass

from ...partition.cluster.machines import Cluster
from ...partition.placement.from_plan import find_choice, placement_of_choice
from ...partition.placement.placement_file import Placement
from ...partition.planner.forms import FormChoice
from ...partition.planner.plan import PlanningResult
from ...partition.whole_run.run_planner import RunPlan, plan_run
from ...ps.methods.registry import AnyMethod
from ..task.capture_task import CapturedTask, capture_unrolled
from ..task.load_task import TaskSpec
from ..task.plan_request import PlanRequest
from ..task.plan_task import PlannedTask, complete_placement
from .find_exchange import find_exchange


@dataclass(frozen=True)
class PlannedRun:
    """The plan of a run by a method, the placement of a replica in it, and the command that trains so.

    available: machines of the cluster. command: trains as planned.
    """

    method: AnyMethod
    run: RunPlan
    replica: PlannedTask
    available: int
    command: str

    @property
    def placement(self) -> Placement:
        """The placement of a replica."""
        return self.replica.placement


def plan_task_run(
    capture: CapturedTask,
    spec: TaskSpec,
    request: PlanRequest,
    method: AnyMethod,
    *,
    method_text: str,
    cluster: Cluster | None = None,
) -> PlannedRun:
    """Plan the run of a captured task, whose batch is a micro-batch, over all machines of a cluster.

    method_text: the method as the user wrote it. cluster: by default that of the request. Raises Infeasible where
    nothing fits in memory.
    """
    cluster = request.load_cluster() if cluster is None else cluster
    other = capture_unrolled(capture, spec) if len(cluster) > 1 else None
    unrolled = None if other is None or not other.unrolled else other.train
    choices: dict[int, FormChoice] = {}

    def plan_replica(machines: Cluster) -> PlanningResult:
        choice = find_choice(
            capture.train,
            machines,
            unrolled=unrolled if len(machines) > 1 else None,
            seed=request.seed,
            candidates=request.candidates if len(machines) > 1 else "",
            objective=request.objective,
            pins=request.pins,
            micro_batches=request.micro_batches,
        )
        choices[len(machines)] = choice
        return choice.result

    run = plan_run(cluster, find_exchange(method), plan_replica, batch=capture.batch * request.micro_batches)
    choice = choices[run.chosen.machines_each]
    replica = complete_placement(placement_of_choice(choice, model=spec.model), capture, other, spec)
    command = write_command(spec, request, run, method_text)
    return PlannedRun(method, run, replica, len(cluster), command)


def write_command(spec: TaskSpec, request: PlanRequest, run: RunPlan, method: str) -> str:
    """Return the command that trains as planned."""
    chosen = run.chosen
    words = ["cutset", "train", spec.model, "--method", method, "--replicas", str(chosen.replicas)]
    words += ["--machines", str(chosen.machines_each)]
    if chosen.shards != chosen.machines_each:
        words += ["--shards", str(chosen.shards)]
    if request.cluster is not None:
        reachable = all(machine.address for machine in request.load_cluster().machines)
        words += ["--on", f"ssh:{request.cluster}"] if reachable else ["--cluster", str(request.cluster)]
    if request.micro_batches > 1:
        words += ["--micro-batches", str(request.micro_batches)]
    if spec.batch:
        words += ["--batch", str(spec.batch)]
    return shlex.join(words)
