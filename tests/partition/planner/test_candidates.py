"""The portfolio: all legal, all machines used."""

import pytest
from candidate_cuts import candidates
from example_graphs import chain, conv_line, mlp_block

from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.cut import check_cut
from cutset.partition.planner.candidates import propose_candidates
from cutset.partition.planner.plan import PlanningProblem, Rejected


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
