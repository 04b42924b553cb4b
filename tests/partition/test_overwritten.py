"""Buffers that a step overwrites: who touches them stays together, in order, where they are owned."""

import itertools

import pytest
from candidate_cuts import candidates
from cutting import finest_cut, subject

from cutset.errors import BadInput
from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.carried_cut import carry_cut
from cutset.partition.dataflow.cut import Cut, check_cut, colocate_overwriters, one_machine_cut
from cutset.partition.dataflow.lowering import lower_cut


def test_touching_operators_are_known() -> None:
    overwritten = subject("siamese").graph.overwritten
    assert [op.name for op in overwritten["encode.1.running_mean"]] == ["batch_norm", "batch_norm_1"]
    assert len(overwritten["encode.1.num_batches_tracked"]) == 2  # the addition, and the store at the end
    assert subject("mlp").graph.overwritten == {}
    assert subject("siamese").evaluation.overwritten == {}


def test_a_norm_that_is_used_twice_is_cut_alike() -> None:
    graph = subject("siamese").graph
    boxes = dict(one_machine_cut(graph).boxes)
    boxes["batch_norm"] = [(((0, 6), (0, 4)), 0), (((0, 6), (4, 8)), 1)]
    joined = colocate_overwriters(graph, boxes)
    assert joined["batch_norm_1"] == boxes["batch_norm"]
    check_cut(graph, Cut(2, joined))
    with pytest.raises(
        BadInput, match=r"E341: operators batch_norm and batch_norm_1 must .* overwrites encode.1.running_"
    ):
        check_cut(graph, Cut(2, boxes))


def test_what_reads_a_buffer_in_another_way_moves_to_who_writes_it() -> None:
    graph = subject("running_mean").graph
    touching = graph.overwritten["seen"]
    boxes = {op.name: [(op.nest.box, i % 2)] for i, op in enumerate(graph.ops)}
    joined = colocate_overwriters(graph, boxes)
    (home,) = {machine for op in touching for _, machine in joined[op.name]}
    assert home == boxes[touching[0].name][0][1]
    check_cut(graph, Cut(2, joined))


def test_a_buffer_is_owned_where_it_is_overwritten() -> None:
    graph = subject("conv").graph
    cut = finest_cut(graph, 2)
    spelled = lower_cut(graph, cut)
    check_cut(graph, spelled.cut)
    swapped = [(box, 1 - machine) for box, machine in spelled.cut.owners["norm.running_mean"]]
    owners = {**spelled.cut.owners, "norm.running_mean": swapped}
    with pytest.raises(BadInput, match=r"E341: norm\.running_mean must be owned where batch_norm overwrites it"):
        check_cut(graph, Cut(2, cut.boxes, spelled.cut.folds, owners))


@pytest.mark.parametrize("name", ["siamese", "running_mean"])
def test_those_who_touch_a_buffer_run_in_the_models_order(name: str) -> None:
    graph = subject(name).graph
    for cut in (finest_cut(graph, 3), *(c.cut for c in candidates(graph, uniform_cluster(3), seed=0))):
        spelled = lower_cut(graph, cut)
        for buffer, machine in itertools.product(graph.overwritten, range(3)):
            touching = [
                i.stage for i in spelled.instructions if i.machine == machine and buffer in (r.tensor for r in i.reads)
            ]
            assert touching == sorted(touching)


def test_evaluation_finds_its_buffers_where_training_left_them() -> None:
    of = subject("running_mean")
    spelled = lower_cut(of.graph, finest_cut(of.graph, 3))
    carried = carry_cut(of.graph, spelled.cut, of.evaluation)
    assert carried.owners.items() <= spelled.cut.owners.items()
    check_cut(of.evaluation, carried)
