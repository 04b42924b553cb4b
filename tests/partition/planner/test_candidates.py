"""The portfolio: all legal, all machines used."""

import pytest
from candidate_cuts import candidates
from example_graphs import chain, conv_line, mlp_block

from cutset.partition.cluster.machines import Cluster, Machine, uniform_cluster
from cutset.partition.dataflow.cut import check_cut
from cutset.partition.planner.candidates import propose_candidates
from cutset.partition.planner.plan import Candidate, PlanningProblem, Rejected


@pytest.mark.parametrize("machines", [2, 3, 4])
@pytest.mark.parametrize("graph", [chain(16, 12, 8), conv_line(16), mlp_block(8, 4, 16)], ids=["chain", "conv", "mlp"])
def test_every_candidate_is_legal_and_uses_every_machine(graph, machines) -> None:  # type: ignore[no-untyped-def]
    found = list(candidates(graph, uniform_cluster(machines), seed=0))
    assert len({c.name for c in found}) == len(found) >= 2
    for candidate in found:
        check_cut(graph, candidate.cut)
        used = {machine for pieces in candidate.cut.boxes.values() for _, machine in pieces}
        assert used == set(range(machines)), candidate.name


def test_candidates_are_the_same_every_time() -> None:
    graph = chain(16, 12, 8)
    first, second = (list(candidates(graph, uniform_cluster(3), seed=7)) for _ in range(2))
    assert first == second


def test_what_is_left_out_says_why() -> None:
    left = {
        found.name: found.reason
        for found in propose_candidates(PlanningProblem(chain(2, 2, batch=2), uniform_cluster(8)))
        if isinstance(found, Rejected)
    }
    assert left["stages"] == "2 operators for 8 stages"
    assert all(left.values())


def test_pinned_operators_are_whole_where_they_are_pinned() -> None:
    graph = mlp_block(8, 4, 16)
    for found in propose_candidates(PlanningProblem(graph, uniform_cluster(3), pins={"linear_1": 2})):
        if not isinstance(found, Rejected):
            assert found.cut.boxes["linear_1"] == [(graph.ops[2].nest.box, 2)], found.name
            check_cut(graph, found.cut)


def test_stages_of_several_machines_come_with_micro_batches() -> None:
    graph = chain(16, 12, 8)
    names = [found.name for found in propose_candidates(PlanningProblem(graph, uniform_cluster(4), micro_batches=4))]
    assert "stages x mesh 2x2" in names
    assert "stages x mesh 2x2" not in [
        found.name for found in propose_candidates(PlanningProblem(graph, uniform_cluster(4)))
    ]


def test_unlike_machines_have_stages_in_both_orders() -> None:
    graph = chain(64, 64, 64, 64, 64, batch=16)
    cluster = Cluster(tuple(Machine(f"m{n}", speed * 1e9) for n, speed in enumerate((4, 1, 1))), bandwidth=1e8)
    found = {c.name: c for c in propose_candidates(PlanningProblem(graph, cluster, micro_batches=4), prefix="stages x")}
    first = graph.ops[0].name
    assert {"stages x meshes", "stages x meshes, uneven", "stages x meshes, turned"} <= found.keys()
    for name, machine in (("stages x meshes", 0), ("stages x meshes, turned", 2)):
        candidate = found[name]
        assert isinstance(candidate, Candidate)
        assert machine in {number for _, number in candidate.cut.boxes[first]}
    alike = PlanningProblem(graph, uniform_cluster(3), micro_batches=4)
    assert not [c.name for c in propose_candidates(alike, prefix="stages x") if "turned" in c.name]
    assert not list(propose_candidates(PlanningProblem(graph, uniform_cluster(2)), prefix="stages x"))
