"""The planner's choice, its verdict in words, and the way back from a file."""

import msgspec
import pytest
from example_graphs import chain, conv_line, mlp_block

from cutset.partition.box import volume
from cutset.partition.cluster import Cluster, Machine, alike
from cutset.partition.cut import check
from cutset.partition.errors import BadInput, Infeasible, UsageError
from cutset.partition.exchange import flow
from cutset.partition.matching import cut_of
from cutset.partition.placement import Placement, to_json
from cutset.partition.planner import FAIR_SHARE, plan

GRAPH = chain(16, 24, 8)


def fast_network(machines: int) -> Cluster:
    return Cluster(tuple(Machine(f"m{i}", 1e6, operator_s=0.0) for i in range(machines)), bandwidth=1e12, latency_s=0.0)


@pytest.mark.parametrize("machines", [1, 2, 3, 4])
def test_a_plan_uses_every_machine_and_comes_back_from_its_file(machines: int) -> None:
    placement = plan(GRAPH, alike(machines), model="here:chain")
    again = msgspec.json.decode(to_json(placement), type=Placement)
    assert again == placement
    cut = cut_of(again, GRAPH)
    check(GRAPH, cut)
    assert {m for pieces in cut.boxes.values() for _, m in pieces} == set(range(machines))
    assert flow(GRAPH, cut).bytes_forward == placement.predicted.bytes_forward
    assert sum(t.bytes for t in placement.predicted.traffic) == placement.predicted.bytes_forward


def test_the_same_question_has_the_same_answer() -> None:
    graphs = [chain(16, 24, 8) for _ in range(2)]
    first, second = (to_json(plan(graph, alike(3), model="m", seed=4)) for graph in graphs)
    assert first == second


def test_flops_and_parameters_are_all_given_out() -> None:
    placement = plan(GRAPH, alike(3), model="m", only="slices")
    alone = plan(GRAPH, alike(1), model="m")
    assert sum(m.flops for m in placement.machines) == pytest.approx(alone.machines[0].flops)
    assert sum(m.parameters for m in placement.machines) == sum(volume(p.box) for p in GRAPH.parameters)


def test_the_verdict_says_when_machines_do_not_pay() -> None:
    placement = plan(GRAPH, alike(2), model="m")
    assert placement.verdict.startswith("More machines do not pay: 2 take ")
    assert placement.predicted.step_s > placement.predicted.one_machine_s


def test_the_verdict_says_when_they_pay() -> None:
    placement = plan(chain(256, 256, 256), fast_network(2), model="m")
    assert placement.verdict.startswith("2 machines pay: ")
    assert placement.predicted.step_s < placement.predicted.one_machine_s


def test_no_machine_is_left_idle_while_there_is_another_plan() -> None:
    placement = plan(GRAPH, alike(2), model="m")
    winner = next(score for score in placement.candidates if score.name == placement.winner)
    assert winner.least_share >= FAIR_SHARE


def test_memory_is_a_hard_limit_and_the_machine_is_named() -> None:
    small = Cluster((Machine("big", memory_bytes=1 << 30), Machine("thimble", memory_bytes=100)))
    with pytest.raises(Infeasible, match="thimble has 100 bytes and needs"):
        plan(GRAPH, small, model="m")


def test_a_model_too_large_for_one_machine_is_spread() -> None:
    graph = chain(64, 64, 64, 64)
    whole = max(s.memory_max_bytes for s in plan(graph, alike(1), model="m").candidates)
    machines = tuple(Machine(f"m{i}", memory_bytes=whole * 3 // 4) for i in range(2))
    placement = plan(graph, Cluster(machines), model="m")
    assert placement.verdict.startswith("One machine is too small; 2 machines take ")


def test_more_machines_than_blocks_are_refused() -> None:
    with pytest.raises(Infeasible, match="machines") as error:
        plan(chain(2, 2, batch=1), alike(64), model="m")
    assert "--machines" in error.value.fix


@pytest.mark.parametrize("count", [0, -1, 5000])
def test_a_cluster_of_no_or_too_many_machines_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match=f"{count} machines"):
        alike(count)


def test_only_plans_of_a_kind_are_considered_where_asked() -> None:
    placement = plan(GRAPH, alike(2), model="m", only="slices")
    assert placement.winner == "slices"
    with pytest.raises(UsageError, match="no candidate begins with 'magic'"):
        plan(GRAPH, alike(2), model="m", only="magic")


def test_a_placement_of_another_model_names_the_first_difference() -> None:
    placement = plan(GRAPH, alike(2), model="m")
    with pytest.raises(BadInput, match=r"parameter 0\.weight is float32\[24, 16\] in the placement, float32\[25, 16\]"):
        cut_of(placement, chain(16, 25, 8))
    with pytest.raises(BadInput, match=r"parameter 2\.weight is missing in the placement"):
        cut_of(placement, chain(16, 24, 8, 8))
    with pytest.raises(BadInput, match="operator 0 is linear"):
        cut_of(placement, chain(16, 24, 8, batch=5))


def test_a_convolution_is_tiled_along_its_image() -> None:
    graph = conv_line(4096, batch=2)
    placement = plan(graph, fast_network(2), model="m", only="metis space")
    conv = next(op for op in placement.ops if op.name == "conv1d")
    assert sorted(piece.machine for piece in conv.boxes) == [0, 1]


def test_hidden_units_are_cut_in_pairs_where_the_net_is_fast_enough() -> None:
    graph = mlp_block(64, 32, 512)
    placement = plan(graph, fast_network(2), model="m", only="metis pairs")
    up = next(op for op in placement.ops if op.name == "linear_1")
    assert sorted(piece.machine for piece in up.boxes) == [0, 1]


def test_a_machine_with_little_memory_gets_less_of_the_model() -> None:
    graph = chain(64, 64, 64, 64)
    whole = plan(graph, alike(1), model="m").candidates[0].memory_max_bytes
    cluster = Cluster((Machine("roomy"), Machine("narrow", memory_bytes=whole * 2 // 5)))
    placement = plan(graph, cluster, model="m")
    assert placement.machines[1].memory_used_bytes <= whole * 2 // 5
    small = Cluster((Machine("roomy", memory_bytes=whole // 3), Machine("narrow", memory_bytes=whole // 9)))
    with pytest.raises(
        Infeasible, match=r"narrow has \d+ bytes and needs \d+ \(the largest block: \d.weight, \d+ bytes"
    ):
        plan(graph, small, model="m")
