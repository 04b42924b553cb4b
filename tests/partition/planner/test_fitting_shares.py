"""Shares by speed up to what fits in memory."""

from example_graphs import chain

from cutset.partition.cluster.machines import Cluster, Machine
from cutset.partition.dataflow.cut import one_machine_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.dataflow.memory_model import peak_memory
from cutset.partition.ir.graph import Graph
from cutset.partition.planner.candidates import candidate_names, propose_candidates
from cutset.partition.planner.fitting_shares import is_memory_tight
from cutset.partition.planner.plan import Candidate, PlanningProblem
from cutset.partition.planner.planner import find_plan

SPEED = 1e9
GRAPH = chain(256, 256, 256, 256, 256, batch=16)


def need(graph: Graph) -> int:
    """Bytes that one machine needs for the whole model."""
    return sum(peak_memory(lower_cut(graph, one_machine_cut(graph)))[0])


def cluster_of(*machines: tuple[float, float]) -> Cluster:
    """Machines of so many times the speed, with so many times the memory that one machine needs."""
    return Cluster(
        tuple(Machine(f"m{n}", speed * SPEED, int(room * need(GRAPH))) for n, (speed, room) in enumerate(machines)),
        bandwidth=1e9,
        latency_s=1e-6,
    )


def test_a_fast_machine_with_little_memory_gets_what_it_can_hold() -> None:
    """It would have four fifths by its speed, and by memory much less than it can hold."""
    result = find_plan(GRAPH, cluster_of((4, 0.5), (1, 4)), candidates="mesh 2")
    by_name = {plan.name: plan for plan in result.plans}
    best = by_name["mesh 2 to fit"]
    assert best.fits
    assert not by_name["mesh 2"].fits
    assert best.simulation.step_s < 0.8 * by_name["mesh 2 by memory"].simulation.step_s
    assert best.simulation.memory_bytes[0] > 0.4 * need(GRAPH)
    assert result.winner.simulation.step_s <= best.simulation.step_s


def test_shares_are_not_looked_for_where_memory_is_ample() -> None:
    problem = PlanningProblem(GRAPH, cluster_of((4, 9), (1, 9)))
    assert not is_memory_tight(problem)
    assert not [name for name in candidate_names(problem) if name.endswith("to fit")]


def test_what_fits_by_speed_and_what_never_fits_say_so() -> None:
    for rooms, reason in (
        ((0.7, 0.7), "shares by speed fit as they are"),
        ((0.1, 0.1), "no shares of the machines were found that fit in their memory"),
    ):
        problem = PlanningProblem(GRAPH, cluster_of(*((1, room) for room in rooms)))
        assert is_memory_tight(problem)
        (found,) = propose_candidates(problem, prefix="mesh 2 to fit")
        assert not isinstance(found, Candidate)
        assert found.reason == reason


def test_stages_of_several_machines_are_made_to_fit_too() -> None:
    problem = PlanningProblem(GRAPH, cluster_of((4, 0.3), (4, 0.3), (1, 4), (1, 4)), micro_batches=4)
    found = {c.name: c for c in propose_candidates(problem, prefix="stages x mesh 2x2")}
    assert isinstance(found["stages x mesh 2x2 to fit"], Candidate)
