"""Plans a whole run of a task: how many replicas, of how many machines each."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import UsageError
from ...partition.cluster.hierarchy import find_hosts
from ...partition.cluster.machines import Cluster
from ...partition.dataflow.memory_model import uncut_memory
from ...partition.placement.from_plan import find_choice, placement_of_choice
from ...partition.placement.placement_file import Placement
from ...partition.planner.forms import FormChoice
from ...partition.planner.pins import name_pins
from ...partition.planner.plan import PlanningResult
from ...partition.whole_run.exchange import Exchange
from ...partition.whole_run.run_planner import RunPlan, plan_run
from ...ps.methods.registry import AnyMethod
from ..config.option import options_of
from ..config.option_conflicts import ONE_HOST
from ..config.run_config import RunConfig
from ..task.capture_task import CapturedTask, capture_unrolled
from ..task.load_task import TaskSpec
from ..task.plan_request import PlanRequest
from ..task.plan_task import PlannedTask, complete_placement
from .find_exchange import find_exchange

QUICK_MACHINES = 8  # up to which a plan takes seconds, and needs no words


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
    tell: Callable[[str], None] = lambda sentence: None,
) -> PlannedRun:
    """Plan the run of a captured task, whose batch is a micro-batch, over all machines of a cluster.

    method_text: the method as the user wrote it. cluster: by default that of the request. tell: is called with a
    sentence for each plan that takes some time. Raises Infeasible where nothing fits in memory.
    """
    cluster = request.load_cluster() if cluster is None else cluster
    exchange, batch = find_exchange(method), capture.batch * request.micro_batches
    _refuse(method, exchange, cluster)
    other = capture_unrolled(capture, spec) if len(cluster) > 1 else None
    unrolled = None if other is None or not other.unrolled else other.train
    choices: dict[int, FormChoice] = {}
    pins = name_pins(request.pins, cluster)

    def plan_replica(machines: Cluster) -> PlanningResult:
        if len(machines) > QUICK_MACHINES:
            tell(f"planning a replica of {len(machines)} of the {len(cluster)} machines")
        choice = find_choice(
            capture.train,
            machines,
            unrolled=unrolled if len(machines) > 1 else None,
            seed=request.seed,
            candidates=request.candidates if len(machines) > 1 else "",
            objective=request.objective,
            pins=pins,
            micro_batches=request.micro_batches,
        )
        choices[len(machines)] = choice
        return choice.result

    run = plan_run(cluster, exchange, plan_replica, batch=batch, model_bytes=uncut_memory(capture.train))
    choice = choices[run.chosen.machines_each]
    replica = complete_placement(placement_of_choice(choice, model=spec.model), capture, other, spec)
    shards = None if exchange.ring or run.chosen.shards == run.chosen.machines_each else run.chosen.shards
    command = write_command(spec, request, run, method_text, shards)
    return PlannedRun(method, run, replica, len(cluster), command)


def _refuse(method: AnyMethod, exchange: Exchange, cluster: Cluster) -> None:
    """Raise UsageError for a method of one host where machines are on several, and for more backups than replicas."""
    if method.name in ONE_HOST and not _is_one_host(cluster):
        facts = f"method {method.name} does not go over several machines"
        raise UsageError("E269", facts, fix="--method downpour, or a cluster of one host, as --cluster here")
    if exchange.backups >= len(cluster):
        facts = f"{exchange.backups} backups among {len(cluster)} replicas leave none whose gradients count"
        raise UsageError("E263", facts, fix="fewer backups, or more machines")


def _is_one_host(cluster: Cluster) -> bool:
    """Return whether machines are known to be of one host: they share its cores, or have faster links to all others."""
    if any(machine.address for machine in cluster.machines):
        return False
    count = len(cluster)
    shares = any(len(one.machines) == count for one in cluster.shared)
    return count == 1 or shares or (len(cluster.links) == count * (count - 1) and len(find_hosts(cluster)) == 1)


def write_command(spec: TaskSpec, request: PlanRequest, run: RunPlan, method: str, shards: int | None) -> str:
    """Return the command that trains as planned, with every option of the plan. shards: None for the default."""
    chosen = run.chosen
    words = ["cutset", "train", spec.model, "--method", method, "--replicas", str(chosen.replicas)]
    words += ["--machines", str(chosen.machines_each), *([] if shards is None else ["--shards", str(shards)])]
    if request.cluster is not None:
        reachable = all(machine.address for machine in request.load_cluster().machines)
        words += ["--on", f"ssh:{request.cluster}"] if reachable else ["--cluster", str(request.cluster)]
    for one, declared in options_of(RunConfig):
        source = next((place for place in (spec, request) if hasattr(place, one.name)), None)
        if source is None or one.name in ("machines", "max_machines", "cluster"):
            continue
        value = getattr(source, one.name)
        if value is True:
            words.append(declared.flag)
        elif isinstance(value, tuple):
            words += [word for each in value for word in (declared.flag, str(each))]
        elif value not in (None, "", False, one.default):
            words += [declared.flag, str(value)]
    return shlex.join(words)
