"""Turns a planning result into a placement: the winner's boxes, its predicted cost, and the scores of the others."""

import platform
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Unpack

import msgspec

from ...errors import Infeasible
from ..cluster.hierarchy import find_hosts
from ..cluster.machines import Cluster
from ..dataflow.cut import Cut, PlacedBox
from ..dataflow.dataflow import Dataflow
from ..dataflow.simulator import SEND, Simulation
from ..ir.box import volume
from ..ir.graph import Graph
from ..operators.sharding.sharding_rule import SUMMARY_SUFFIX
from ..planner.forms import FormChoice, find_form
from ..planner.plan import TIME, TIME_TOLERANCE, PlanningOptions, PlanningResult, ScoredPlan
from ..planner.planner import find_plan
from .placement_file import (
    FORMAT,
    BoxPlacement,
    CandidateScore,
    Loop,
    MachinePlacement,
    OpPlacement,
    ParameterPlacement,
    Placement,
    Prediction,
    RejectedCandidate,
    TimelineSpan,
    Traffic,
)
from .to_cut import fingerprint
from .verdict import describe_forms, describe_split, write_verdict

MAX_SPANS = 20_000  # intervals of a timeline; of a longer one the sends are left out


def placement_of_plan(result: PlanningResult, *, model: str) -> Placement:
    """The placement of a planning result. model: the import string to note in the file."""
    winner, one_machine, problem = result.winner, result.one_machine, result.problem
    graph, cut, simulation = winner.graph, winner.cut, winner.simulation
    plans = result.plans if len(result.plans) == 1 else _one_machine_first(one_machine, result.plans)
    return Placement(
        format=FORMAT,
        model=model,
        batch=next((t.shape[0] for t in graph.tensors.values() if t.kind == "input" and t.shape), 1),
        micro_batches=problem.micro_batches,
        fingerprint=fingerprint(graph),
        machines=_machines(winner, winner.cluster),
        ops=_ops(graph, cut),
        parameters=_parameters(graph, cut),
        winner=winner.name,
        objective=result.objective,
        verdict=write_verdict(result),
        predicted=Prediction(
            step_s=simulation.step_s,
            one_machine_s=one_machine.simulation.step_s,
            least_s=result.least_s,
            bytes_forward=winner.bytes_forward,
            messages_forward=len(winner.dataflow.edges) + len(winner.dataflow.shared_edges),
            traffic=_traffic_by_tensor(winner.dataflow),
            timeline=_timeline(simulation),
        ),
        candidates=[_score(plan) for plan in plans],
        rejected=[RejectedCandidate(rejected.name, rejected.reason) for rejected in result.rejected],
        seed=problem.seed,
        versions=_versions(),
        wave=cut.wave,
    )


def _versions() -> dict[str, str]:
    """Versions of everything that a plan depends on."""
    versions = {name: version(name) for name in ("cutset", "torch", "pymetis", "mtkahypar")}
    return versions | {"python": platform.python_version()}


def _one_machine_first(one_machine: ScoredPlan, plans: Sequence[ScoredPlan]) -> list[ScoredPlan]:
    alone = one_machine.name, one_machine.cluster
    return [one_machine, *(plan for plan in plans if (plan.name, plan.cluster) != alone)]


def _score(plan: ScoredPlan) -> CandidateScore:
    simulation = plan.simulation
    return CandidateScore(
        plan.name,
        plan.cut.machines,
        simulation.step_s,
        plan.bytes_forward,
        max(simulation.memory_bytes),
        plan.fits,
        plan.min_load,
        describe_split(plan),
    )


def _timeline(simulation: Simulation) -> list[TimelineSpan]:
    kept = simulation.timeline
    if len(kept) > MAX_SPANS:
        kept = tuple(activity for activity in kept if activity.kind != SEND)
    return [TimelineSpan(a.machine, a.kind, a.label, a.start_s, a.stop_s) for a in kept]


def _machines(winner: ScoredPlan, cluster: Cluster) -> list[MachinePlacement]:
    parameters = Counter[int]()
    for info in winner.dataflow.graph.parameters:
        for box, machine in winner.cut.owners[info.name]:
            parameters[machine] += volume(box)
    simulation = winner.simulation
    return [
        MachinePlacement(
            m.name,
            m.flops_per_s,
            m.memory_bytes,
            simulation.flops[i],
            simulation.busy_s[i],
            simulation.memory_bytes[i],
            parameters[i],
            sorted(stage for machine, stage in winner.cut.recomputed if machine == i),
            sorted((stage, after) for (machine, stage), after in winner.cut.deferred.items() if machine == i),
        )
        for i, m in enumerate(cluster.machines)
    ]


def _ops(graph: Graph, cut: Cut) -> list[OpPlacement]:
    producers = graph.producers
    return [
        OpPlacement(
            op.name,
            op.target,
            op.module,
            sorted({producers[name] for name in op.inputs if name in producers}),
            op.flops,
            [Loop(graph.axes[loop.axis][0], loop.size, loop.kind) for loop in op.nest.loops],
            _pieces(cut.boxes[op.name]),
            _pieces(cut.folds.get(op.name, ())),
            sorted({name for name in op.inputs if name not in producers}),
        )
        for op in graph.ops
    ]


def _parameters(graph: Graph, cut: Cut) -> list[ParameterPlacement]:
    return [
        ParameterPlacement(
            info.name,
            list(info.shape),
            info.dtype,
            [graph.axes[axis] for dim in info.axes for axis in dim],
            _pieces(cut.owners[info.name]),
        )
        for info in graph.states
    ]


def _pieces(pieces: Sequence[PlacedBox]) -> list[BoxPlacement]:
    return [BoxPlacement(list(box), machine) for box, machine in pieces]


def _traffic_by_tensor(dataflow: Dataflow) -> list[Traffic]:
    """Bytes sent forward, by the producing operator (or parameter) and the pair of machines."""
    producers = dataflow.graph.producers
    total: dict[tuple[str, int, int], int] = defaultdict(int)
    for edge in (*dataflow.shared_edges, *dataflow.edges):
        for _, copy in edge.pairs:
            tensor = dataflow.pieces[copy].tensor
            name = producers[tensor].removesuffix(SUMMARY_SUFFIX) if tensor in producers else tensor
            total[name, edge.source, edge.target] += dataflow.sent_bytes(copy)
    return [Traffic(name, source, target, size) for (name, source, target), size in total.items()]


def plan_placement(
    graph: Graph, cluster: Cluster, *, model: str, unrolled: Graph | None = None, **options: Unpack[PlanningOptions]
) -> Placement:
    """Plan a graph over the machines of a cluster, and return the best cut as a placement.

    model: the import string to note in the file. unrolled: another graph of the model, in which recurrent operators are
    unrolled; the better plan of both is taken. Raises as `find_plan`.
    """
    choice = find_choice(graph, cluster, unrolled=unrolled, **options)
    if not options.get("fewer", False) and not options.get("candidates", ""):
        choice = replace(choice, result=_add_fewer(choice.result))
    return placement_of_choice(choice, model=model)


def _add_fewer(result: PlanningResult) -> PlanningResult:
    """Add a faster plan that leaves machines out, or next to idle, if one is found; and that for one host alone.

    All machines are to have work; but who asks what they are good for should know if some of them are better.
    """
    winner, one_host = result.winner, _plan_one_host(result)
    plans = result.plans if one_host is None else (*result.plans, one_host)
    if winner.figures.idle or result.objective != TIME:
        return replace(result, plans=plans)
    some = [one for one in plans if one.fits and (one.figures.idle or len(one.cluster) < len(winner.cluster))]
    best = min(some, key=lambda plan: plan.simulation.step_s, default=None)
    alone_s = result.one_machine.simulation.step_s if result.one_machine.fits else winner.simulation.step_s
    limit_s = min(winner.simulation.step_s, alone_s) / TIME_TOLERANCE
    return replace(result, plans=plans, fewer=best if best is not None and best.simulation.step_s < limit_s else None)


def _plan_one_host(result: PlanningResult) -> ScoredPlan | None:
    """The best plan for the machines of one host alone, where there are several hosts and nothing is pinned."""
    problem = result.problem
    hosts = [host for host in find_hosts(problem.cluster) if 1 < len(host) < len(problem.cluster)]
    if not hosts or problem.pins or result.shortage:
        return None
    largest = problem.cluster.select(max(hosts, key=len))  # of equal ones the first, which is the fastest
    options = PlanningOptions(seed=problem.seed, objective=result.objective, micro_batches=problem.micro_batches)
    try:
        return find_plan(problem.graph, largest, **options).winner
    except Infeasible:
        return None


def find_choice(
    graph: Graph, cluster: Cluster, *, unrolled: Graph | None, **options: Unpack[PlanningOptions]
) -> FormChoice:
    """Plan a graph, and where there is one its unrolled form. Raises as `find_plan`."""
    if unrolled is None:
        return FormChoice(find_plan(graph, cluster, **options), False, None, one_form=True)
    return find_form(graph, unrolled, cluster, **options)


def placement_of_choice(choice: FormChoice, *, model: str) -> Placement:
    """The placement of the better form. model: the import string to note in the file."""
    placement = placement_of_plan(choice.result, model=model)
    if choice.one_form:
        return placement
    verdict = f"{placement.verdict} {describe_forms(choice)}"
    return msgspec.structs.replace(placement, verdict=verdict, unrolled=choice.unrolled)
