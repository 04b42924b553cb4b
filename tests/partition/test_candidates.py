"""The portfolio: all legal, all machines used."""

import pytest
from example_graphs import chain, conv_line, mlp_block

from cutset.partition.planner.candidates import LeftOut, Question, answers, candidates
from cutset.partition.cluster.machines import alike
from cutset.partition.dataflow.cut import check


@pytest.mark.parametrize("machines", [2, 3, 4])
@pytest.mark.parametrize("graph", [chain(16, 12, 8), conv_line(16), mlp_block(8, 4, 16)], ids=["chain", "conv", "mlp"])
def test_every_candidate_is_legal_and_uses_every_machine(graph, machines) -> None:  # type: ignore[no-untyped-def]
    found = list(candidates(graph, alike(machines), seed=0))
    assert len({c.name for c in found}) == len(found) >= 2
    for candidate in found:
        check(graph, candidate.cut)
        used = {machine for pieces in candidate.cut.boxes.values() for _, machine in pieces}
        assert used == set(range(machines)), candidate.name


def test_candidates_are_the_same_every_time() -> None:
    graph = chain(16, 12, 8)
    first, second = (list(candidates(graph, alike(3), seed=7)) for _ in range(2))
    assert first == second


def test_what_is_left_out_says_why() -> None:
    left = {
        found.name: found.reason
        for found in answers(Question(chain(2, 2, batch=2), alike(8)))
        if isinstance(found, LeftOut)
    }
    assert left["stages"] == "2 operators for 8 stages"
    assert all(left.values())


def test_pinned_operators_are_whole_where_they_are_pinned() -> None:
    graph = mlp_block(8, 4, 16)
    for found in answers(Question(graph, alike(3), pins={"linear_1": 2})):
        if not isinstance(found, LeftOut):
            assert found.cut.boxes["linear_1"] == [(graph.ops[2].nest.box, 2)], found.name
            check(graph, found.cut)


def test_stages_of_several_machines_come_with_micro_batches() -> None:
    graph = chain(16, 12, 8)
    names = [found.name for found in answers(Question(graph, alike(4), micro_batches=4))]
    assert "stages x mesh 2x2" in names
    assert "stages x mesh 2x2" not in [found.name for found in answers(Question(graph, alike(4)))]
