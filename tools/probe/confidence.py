"""How sure a predicted step is: which constants it hangs on, and whether they were measured, stated or guessed.

The plan is simulated again with each group of constants made worse by a quarter; what that changes of the step, over a
quarter, is the part of the step that hangs on them.
"""

from collections.abc import Iterator
from dataclasses import replace

from ...partition.cluster.cost_model import CostModel
from ...partition.cluster.machines import Cluster, Machine, SharedCores
from ...partition.dataflow.lowering import lower_cut
from ...partition.dataflow.memory_model import measure_memory_use
from ...partition.dataflow.simulator import simulate
from ...partition.operators.sharding.cost_class import ELEMENTWISE, VIEW
from ..measured.class_names import CLASS_NAMES
from ..task.plan_request import DESKTOP, HERE, PlanRequest
from ..task.plan_task import PlannedTask, load_cut
from ..units import format_percent

WORSE = 1.25
MIN_PART, MAX_NAMED = 0.1, 3  # of the step: what it hangs on less is not named
MAX_OPERATORS = 3000  # of a graph; simulating a larger one again and again takes too long
MESSAGES, BANDWIDTH = "messages", "the network's bandwidth"


def describe_confidence(planned: PlannedTask, cluster: Cluster, request: PlanRequest) -> str:
    """Say on which constants the predicted step hangs, and where these come from; "" where nothing stands out.

    cluster: the machines that it was planned for.
    """
    placement, graph = planned.placement, planned.capture.train
    numbers = {machine.name: number for number, machine in enumerate(cluster.machines)}
    used = [numbers[machine.name] for machine in placement.machines if machine.name in numbers]
    if len(used) != len(placement.machines) or len(graph.ops) > MAX_OPERATORS:
        return ""
    flow = lower_cut(graph, load_cut(planned.capture, placement))
    costs, uses = CostModel(graph.tensors), measure_memory_use(flow)

    def predict(machines: Cluster) -> float:
        return simulate(flow, machines, micro_batches=placement.micro_batches, costs=costs, uses=uses).step_s

    own = cluster.select(used) if len(used) > 1 else cluster.alone(used[0])
    works = [costs.work(op, op.nest.box) for op in graph.ops]
    step_s = predict(own)
    parts = {
        name: (predict(worse) / step_s - 1) / (WORSE - 1)
        for name, worse in _make_worse(own, sorted({work.kind for work in works}))
    }
    named = sorted((name for name in parts if parts[name] >= MIN_PART), key=lambda name: -parts[name])[:MAX_NAMED]
    measured = {
        kind: all(work.signature in own.machines[0].ratios for work in works if work.kind == kind)
        for kind in {work.kind for work in works}
    }
    hangs_on = []
    for name in named:
        origin = _describe_origin(name, own.machines[0], measured, request)
        hangs_on.append(f"{CLASS_NAMES.get(name, name)} ({format_percent(parts[name])}, {origin})")
    return f"The predicted step hangs on {', '.join(hangs_on)}." if hangs_on else ""


def _make_worse(cluster: Cluster, kinds: list[str]) -> Iterator[tuple[str, Cluster]]:
    """Yield a cluster for each group of constants, which are worse."""
    for kind in kinds:
        yield kind, replace(cluster, machines=tuple(_slow_down(machine, kind) for machine in cluster.machines))
    if len(cluster) > 1:
        machines = tuple(replace(m, message_s=WORSE * m.message_s) for m in cluster.machines)
        links = tuple(replace(link, latency_s=WORSE * link.latency_s) for link in cluster.links)
        yield MESSAGES, replace(cluster, machines=machines, links=links, latency_s=WORSE * cluster.latency_s)
        links = tuple(replace(link, bandwidth=link.bandwidth / WORSE) for link in cluster.links)
        shared = tuple(map(_slow_copies, cluster.shared))
        yield BANDWIDTH, replace(cluster, links=links, bandwidth=cluster.bandwidth / WORSE, shared=shared)


def _slow_copies(cores: SharedCores) -> SharedCores:
    return replace(cores, copies_per_s=_slow(cores.copies_per_s), network_per_s=_slow(cores.network_per_s))


def _slow(bytes_per_s: float | None) -> float | None:
    return None if bytes_per_s is None else bytes_per_s / WORSE


def _slow_down(machine: Machine, kind: str) -> Machine:
    ahead, back = machine.ratios.get(kind, (1.0, 1.0))
    return replace(machine, ratios={**machine.ratios, kind: (WORSE * ahead, WORSE * back)})


def _describe_origin(name: str, machine: Machine, measured: dict[str, bool], request: PlanRequest) -> str:
    if request.source == DESKTOP:
        return "a guess: a desktop's constants"
    if request.source != HERE:
        return f"as in {request.source}"
    if not machine.ratios and not machine.rates:
        return "a guess: this machine was not measured"
    if name in (MESSAGES, BANDWIDTH) or measured[name]:
        return "measured here"
    if name in machine.rates or name in (ELEMENTWISE, VIEW):
        return "measured here for others of the class"
    return "a guess: the speed of matrix products"
