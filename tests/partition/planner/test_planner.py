"""The planner's choice, its verdict in words, and the way back from a file."""

from dataclasses import replace
from itertools import permutations

import msgspec
import pytest
from clusters import slow_machines
from example_graphs import chain, conv_line, mlp_block
from marking import with_slow
from random_nets import random_graph

from cutset.errors import BadInput, Infeasible, UsageError
from cutset.partition.cluster.machines import Cluster, Machine, NetworkLink, SharedCard, SharedCores, uniform_cluster
from cutset.partition.dataflow.cut import Cut, check_cut, one_machine_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.dataflow.simulator import Simulation, simulate
from cutset.partition.ir.box import volume
from cutset.partition.ir.graph import Graph
from cutset.partition.layouts.layout_search import mesh_of_machines
from cutset.partition.layouts.standard_cuts import contiguous_stages, slice_layers, tile_images
from cutset.partition.placement.from_plan import plan_placement
from cutset.partition.placement.placement_file import Placement, to_json
from cutset.partition.placement.to_cut import cut_from_placement
from cutset.partition.placement.verdict import write_verdict
from cutset.partition.planner.plan import FAIR_SHARE, ScoredPlan, choose_best
from cutset.partition.planner.planner import find_plan

GRAPH = chain(16, 24, 8)


def fast_network(machines: int) -> Cluster:
    return Cluster(tuple(Machine(f"m{i}", 1e6, operator_s=0.0) for i in range(machines)), bandwidth=1e12, latency_s=0.0)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("machines", [1, 2, 3, 4])
def test_a_plan_uses_every_machine_and_comes_back_from_its_file(machines: int) -> None:
    placement = plan_placement(GRAPH, uniform_cluster(machines), model="here:chain")
    again = msgspec.json.decode(to_json(placement), type=Placement)
    assert again == placement
    cut = cut_from_placement(again, GRAPH)
    check_cut(GRAPH, cut)
    assert {m for pieces in cut.boxes.values() for _, m in pieces} == set(range(machines))
    assert lower_cut(GRAPH, cut).bytes_forward == placement.predicted.bytes_forward
    assert sum(t.bytes for t in placement.predicted.traffic) == placement.predicted.bytes_forward


def test_the_same_question_has_the_same_answer() -> None:
    graphs = [chain(16, 24, 8) for _ in range(2)]
    first, second = (to_json(plan_placement(graph, uniform_cluster(3), model="m", seed=4)) for graph in graphs)
    assert first == second


@pytest.mark.parametrize("candidates", ["stages", "slices"])
def test_flops_and_parameters_are_all_given_out(candidates: str) -> None:
    placement = plan_placement(GRAPH, uniform_cluster(3), model="m", candidates=candidates)
    alone = plan_placement(GRAPH, uniform_cluster(1), model="m")
    flops, least = sum(m.flops for m in placement.machines), alone.machines[0].flops
    if candidates == "stages":
        assert flops == pytest.approx(least)
    else:  # the loss is cut over its classes, and what its parts are put together by is computed besides
        assert least < flops < 1.02 * least
    assert sum(m.parameters for m in placement.machines) == sum(volume(p.box) for p in GRAPH.parameters)


def test_the_verdict_says_when_machines_do_not_pay() -> None:
    placement = plan_placement(GRAPH, uniform_cluster(2), model="m")
    assert placement.verdict.startswith("Not worth distributing: 1 machine ")
    assert placement.predicted.step_s > placement.predicted.one_machine_s


def test_the_verdict_says_when_they_pay() -> None:
    placement = plan_placement(chain(256, 256, 256), fast_network(2), model="m")
    assert placement.verdict.startswith("Worth distributing: 2 machines ")
    assert placement.predicted.step_s < placement.predicted.one_machine_s


@pytest.mark.parametrize(("bandwidth", "begin"), [(1e6, "Not worth distributing over 4 machines: "), (3e6, "Worth ")])
@pytest.mark.run
def test_where_the_machines_of_one_host_are_faster_alone_the_verdict_says_so(bandwidth: float, begin: str) -> None:
    """It had said that distributing does not pay."""
    links = tuple(NetworkLink(a, b, 1e9, 1e-6) for a, b in permutations(range(4), 2) if a // 2 == b // 2)
    cards = (SharedCard("left", (0, 1)), SharedCard("right", (2, 3)))
    cluster = Cluster(tuple(Machine(f"m {n}", 1e9) for n in range(4)), bandwidth, 1e-5, links, cards=cards)
    graph = chain(256, 256, 256)
    placement, one_host = (plan_placement(graph, c, model="m") for c in (cluster, cluster.select([0, 1])))
    assert len(placement.machines) == 4
    assert placement.verdict.startswith(begin)
    seconds = one_host.predicted.step_s
    assert seconds < placement.predicted.step_s
    assert placement.verdict.endswith(
        f" Fewer machines would be faster, {seconds * 1e3:.3g} ms/step: --max-machines 2."
    )
    assert [score.step_s for score in placement.candidates if score.machines == 2] == [seconds]
    fewer = plan_placement(graph, cluster, model="m", fewer=True)
    assert (len(fewer.machines), fewer.predicted.step_s) == (2, seconds)
    assert "Fewer" not in fewer.verdict


def test_machines_that_share_cores_are_compared_with_one_that_has_all() -> None:
    """Memory, too: a model that is too large for the half of a host may fit on the whole."""
    graph, free = chain(256, 256, 256), fast_network(2)
    half = plan_placement(graph, free, model="m")
    for speedup, contention, begin in (
        (1.25, 1.0, "Worth distributing: 2 machines "),
        (1.9, 1.5, "Not worth distributing: 1 machine with all the cores "),
    ):
        shared = replace(free, shared=(SharedCores((0, 1), 2, contention, whole_speedup=speedup),))
        placement = plan_placement(graph, shared, model="m")
        assert placement.verdict.startswith(begin)
        assert "with all the cores" in placement.verdict
        assert placement.predicted.one_machine_s == pytest.approx(half.predicted.one_machine_s / speedup, rel=1e-3)
        assert placement.predicted.step_s == pytest.approx(contention * half.predicted.step_s, rel=0.05)
    small = half.machines[0].memory_used_bytes
    tight = replace(shared, machines=tuple(replace(machine, memory_bytes=small) for machine in shared.machines))
    assert not plan_placement(graph, tight, model="m", fewer=True).verdict.startswith("The model does not fit")


def test_no_machine_is_left_idle_while_there_is_another_plan() -> None:
    placement = plan_placement(GRAPH, uniform_cluster(2), model="m")
    winner = next(score for score in placement.candidates if score.name == placement.winner)
    assert winner.min_load >= FAIR_SHARE


def test_memory_is_a_hard_limit_and_the_machine_is_named() -> None:
    small = Cluster((Machine("big", memory_bytes=1 << 30), Machine("thimble", memory_bytes=100)))
    with pytest.raises(Infeasible, match="thimble has 100 bytes and needs"):
        plan_placement(GRAPH, small, model="m")


def test_a_model_too_large_for_one_machine_is_spread() -> None:
    graph = chain(64, 64, 64, 64)
    whole = max(s.peak_memory_bytes for s in plan_placement(graph, uniform_cluster(1), model="m").candidates)
    machines = tuple(Machine(f"m{i}", memory_bytes=whole * 3 // 4) for i in range(2))
    placement = plan_placement(graph, Cluster(machines), model="m")
    assert placement.verdict.startswith("The model does not fit on one machine: 2 machines ")


def test_one_machine_is_the_fastest_that_holds_the_model() -> None:
    """The fast machine has next to no memory; a slower one has enough, and a still slower one even more."""
    used = find_plan(GRAPH, fast_network(1)).winner.simulation.memory_bytes[0]
    sizes = ((1e7, used - 1), (2e6, used), (1e6, 9 * used))
    machines = tuple(Machine(f"m{i}", speed, size, operator_s=0.0) for i, (speed, size) in enumerate(sizes))
    for fewer in (False, True):
        result = find_plan(GRAPH, Cluster(machines, bandwidth=1e3, latency_s=1.0), fewer=fewer)
        assert [machine.name for machine in result.one_machine.cluster.machines] == ["m1"]
        assert result.one_machine.fits
        assert not write_verdict(result).startswith("The model does not fit")
    assert result.winner.cluster == result.one_machine.cluster, "of a slow network, the last"


@pytest.mark.run
def test_more_machines_than_blocks_are_left_out() -> None:
    placement = plan_placement(chain(2, 2, batch=1), uniform_cluster(64), model="m")
    assert f"{64 - len(placement.machines)} of 64 machines are left out" in placement.verdict
    with pytest.raises(Infeasible, match="no way was found to give each of 64 machines a part") as error:
        plan_placement(chain(2, 2, batch=1), uniform_cluster(64), model="m", candidates="metis")
    assert "--max-machines" in error.value.fix


def test_sums_are_divided_where_more_machines_are_asked_for_than_there_are_outputs() -> None:
    """A linear layer of 4 x 2: its 8 products may be on 8 machines, and on no more."""
    graph = chain(4, 2, batch=1)
    for machines, used in ((8, 8), (12, 8), (40, 8)):
        placement = plan_placement(graph, uniform_cluster(machines), model="m")
        assert len(placement.machines) == used
        assert ("are left out" in placement.verdict) == (used < machines)


@pytest.mark.parametrize("count", [0, -1, 5000])
def test_a_cluster_of_no_or_too_many_machines_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match=f"{count} machines"):
        uniform_cluster(count)


def test_only_plans_of_a_kind_are_considered_where_asked() -> None:
    placement = plan_placement(GRAPH, uniform_cluster(2), model="m", candidates="slices")
    assert placement.winner == "slices"
    with pytest.raises(UsageError, match="no candidate begins with 'magic'"):
        plan_placement(GRAPH, uniform_cluster(2), model="m", candidates="magic")


def test_a_placement_of_another_model_names_the_first_difference() -> None:
    placement = plan_placement(GRAPH, uniform_cluster(2), model="m")
    with pytest.raises(BadInput, match=r"parameter 0\.weight is float32\[24, 16\] in the placement, float32\[25, 16\]"):
        cut_from_placement(placement, chain(16, 25, 8))
    with pytest.raises(BadInput, match=r"parameter 2\.weight is missing in the placement"):
        cut_from_placement(placement, chain(16, 24, 8, 8))
    with pytest.raises(BadInput, match="operator 0 is linear"):
        cut_from_placement(placement, chain(16, 24, 8, batch=5))


def test_a_convolution_is_tiled_along_its_image() -> None:
    graph = conv_line(4096, batch=2)
    placement = plan_placement(graph, fast_network(2), model="m", candidates="metis space")
    conv = next(op for op in placement.ops if op.name == "conv1d")
    assert sorted(piece.machine for piece in conv.boxes) == [0, 1]


def test_hidden_units_are_cut_in_pairs_where_the_net_is_fast_enough() -> None:
    graph = mlp_block(64, 32, 512)
    placement = plan_placement(graph, fast_network(2), model="m", candidates="metis pairs")
    up = next(op for op in placement.ops if op.name == "linear_1")
    assert sorted(piece.machine for piece in up.boxes) == [0, 1]


def test_a_machine_with_little_memory_gets_less_of_the_model() -> None:
    graph = chain(64, 64, 64, 64)
    whole = plan_placement(graph, uniform_cluster(1), model="m").candidates[0].peak_memory_bytes
    cluster = Cluster((Machine("roomy"), Machine("narrow", memory_bytes=whole * 2 // 5)))
    placement = plan_placement(graph, cluster, model="m")
    assert placement.machines[1].memory_used_bytes <= whole * 2 // 5
    small = Cluster((Machine("roomy", memory_bytes=whole // 3), Machine("narrow", memory_bytes=whole // 9)))
    with pytest.raises(
        Infeasible, match=r"narrow has [\d,]+ bytes and needs [\d,]+ \(the largest block: \d.weight, [\d,]+ bytes"
    ):
        plan_placement(graph, small, model="m")


# The choice --------------------------------------------------------------------------------------------------------


LAYERS = chain(8, 8, 8, 8, 8)


def scored(name: str, seconds: float, sends: int, *, machines: int = 2, share: float = 1.0) -> ScoredPlan:
    """A plan that takes so long and sends so many states of a layer."""
    boxes = {op.name: [(op.nest.box, min(i, sends) % 2)] for i, op in enumerate(LAYERS.ops)}
    found = lower_cut(LAYERS, Cut(machines, boxes))
    assert found.bytes_forward == sends * 4 * 8 * 4
    simulation = Simulation(seconds, (1.0,) * machines, (), (0,) * machines, ())
    cluster = uniform_cluster(machines)
    return ScoredPlan(name, LAYERS, found.cut, cluster, simulation, found.bytes_forward, share, found)


def chosen(*plans: ScoredPlan, objective: str = "time", all_used: bool = True) -> str:
    return choose_best(plans, objective, all_used=all_used).name


def test_of_plans_about_as_fast_the_one_that_sends_least_wins() -> None:
    fast, lean, slow = (
        scored("mesh 2", 1.0, 3),
        scored("mesh 2 by bytes", 1.029, 2),
        scored("mesh 2, local search", 1.04, 1),
    )
    assert chosen(fast, lean, slow) == "mesh 2 by bytes"
    assert chosen(fast, slow) == "mesh 2"
    assert chosen(fast, lean, objective="bytes") == "mesh 2 by bytes"


def test_but_none_that_is_slower_than_a_regular_plan() -> None:
    fast, lean = scored("mesh 2", 1.0, 3), scored("mesh 2 by bytes", 1.02, 1)
    assert chosen(fast, lean, scored("slices", 1.01, 2)) == "slices"
    assert chosen(fast, lean, scored("slices", 1.01, 3)) == "mesh 2"
    assert chosen(fast, lean, scored("slices", 1.025, 3)) == "mesh 2 by bytes"
    assert chosen(fast, lean, scored("one machine", 1.01, 0, machines=1)) == "one machine"


def test_of_equal_plans_that_of_fewer_machines_wins() -> None:
    assert chosen(scored("a", 1.0, 0), scored("one machine", 1.0, 0, machines=1), all_used=False) == "one machine"


def test_idle_machines_count_unless_fewer_may_be_used() -> None:
    lazy, fair = scored("stages", 1.0, 1, share=0.1), scored("slices", 9.0, 3)
    assert chosen(lazy, fair) == "slices"
    assert chosen(lazy, fair, all_used=False) == "stages"


def regular_seconds(graph: Graph, cluster: Cluster) -> dict[str, float]:
    """What slices, tiles, stages and one machine take."""
    count, ops = len(cluster), graph.ops
    line = mesh_of_machines(cluster, range(count), (count,))
    stages = contiguous_stages(graph, cluster, [machine.flops_per_s for machine in cluster.machines])
    drawn = {
        "slices": slice_layers(graph, line),
        "tiles": tile_images(graph, line),
        "stages": stages and {op.name: [(op.nest.box, stage)] for op, stage in zip(ops, stages, strict=True)},
    }
    found = {
        name: simulate(lower_cut(graph, Cut(count, boxes)), cluster).step_s for name, boxes in drawn.items() if boxes
    }
    best = max(cluster.machines, key=lambda machine: machine.flops_per_s)
    alone = simulate(lower_cut(graph, one_machine_cut(graph)), Cluster((best,)))
    return {**found, "one machine": alone.step_s}


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("seed", with_slow(range(3), range(3, 10)))
def test_no_plan_of_a_random_net_is_slower_than_a_regular_one(seed: int) -> None:
    graph = random_graph(seed)
    speeds = [(1e7,) * 4, (1e6, 4e6, 2e6), (1e6,) * 2][seed % 3]
    cluster = slow_machines(*speeds, bandwidth=(1e6, 1e8)[seed % 2])
    winner = find_plan(graph, cluster, fewer=True).winner
    if not graph.overwritten:  # regular cuts of these would have to be put together first
        regular = regular_seconds(graph, cluster)
        assert winner.simulation.step_s <= min(regular.values()) * (1 + 1e-12), regular
    check_cut(graph, winner.dataflow.cut)
