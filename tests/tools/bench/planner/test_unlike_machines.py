"""Plans beside those written by hand: which these are, that they are legal, and that a plan behind one is named."""

from dataclasses import replace

import pytest
from example_graphs import chain

from cutset.partition.capture.export import capture
from cutset.partition.dataflow.cut import check_cut
from cutset.partition.planner.plan_scorer import PlanScorer
from cutset.tools.bench.planner.hand_plans import HandPlan, write_hand_plans
from cutset.tools.bench.planner.random_nets import make_random_net
from cutset.tools.bench.planner.unlike_machines import (
    ROOMS,
    compare_unlike,
    limit_memory,
    make_unlike_machines,
    tabulate,
)


def plans_of(graph) -> dict[str, HandPlan]:  # type: ignore[no-untyped-def]
    return {plan.name: plan for plan in write_hand_plans(graph, make_unlike_machines())}


@pytest.mark.parametrize("seed", range(4))
def test_hand_plans_are_legal_and_use_their_machines(seed: int) -> None:
    net = make_random_net(seed)
    graph = capture(net.model, net.loss, net.example)[0]
    plans = plans_of(graph)
    assert len(plans) >= 15
    for plan in plans.values():
        check_cut(graph, plan.cut)
        assert plan.cut.machines == len(plan.machines)


def test_slices_and_batches_are_by_speed() -> None:
    graph = chain(40, 40, 40, batch=20)
    plans = plans_of(graph)
    assert [box[1] for box, _ in plans["slices by speed"].cut.boxes["linear"]] == [
        (0, 16),
        (16, 32),
        (32, 36),
        (36, 40),
    ]
    assert [box[0] for box, _ in plans["ZeRO by speed"].cut.boxes["linear"]] == [(0, 8), (8, 16), (16, 18), (18, 20)]
    owners = plans["ZeRO, even"].cut.owners
    weight = next(name for name, info in graph.tensors.items() if info.shape == (40, 40) and info.kind == "parameter")
    assert [machine for _, machine in owners[weight]] == [0, 1, 2, 3]
    assert [machine for _, machine in plans["data parallel by speed"].cut.owners[weight]] == [0]


def test_megatron_cuts_the_second_layer_along_what_the_first_one_made() -> None:
    graph = chain(16, 64, 16, batch=8)
    cut = plans_of(graph)["Megatron, even"].cut
    first, second = [op for op in graph.ops if op.name.startswith("linear")]
    (made,) = [n for n, loop in enumerate(first.nest.loops) if cut.boxes[first.name][0][0][n] != (0, loop.size)]
    (summed,) = [n for n, loop in enumerate(second.nest.loops) if cut.boxes[second.name][0][0][n] != (0, loop.size)]
    assert first.nest.loops[made].axis == second.nest.loops[summed].axis
    assert second.nest.loops[summed].kind == "reduction"


def test_memory_is_limited_to_shares_of_what_one_machine_needs() -> None:
    graph = chain(64, 64, 64)
    scorer = PlanScorer(graph, 1)
    cluster = limit_memory(make_unlike_machines(), scorer, graph, ROOMS["slow ones large"])
    sizes = [machine.memory_bytes for machine in cluster.machines]
    assert sizes[0] / sizes[2] == pytest.approx(0.35 / 0.8, rel=1e-3)
    assert limit_memory(cluster, scorer, graph, ()) == cluster


@pytest.mark.run
def test_our_plans_are_not_behind_and_one_that_were_is_named() -> None:
    graph = chain(512, 512, 512, 512, batch=64)
    rows = list(compare_unlike(("chain", graph, memory, 2) for memory in ROOMS))
    assert [row.memory for row in rows] == [*ROOMS]
    assert not [row for row in rows if row.behind]
    assert rows[0].fitting == rows[0].hand_plans >= 15
    assert rows[-1].fitting < rows[-1].hand_plans
    assert "No plan is behind a hand plan by more than 0.2%." in tabulate(rows).notes[-1]
    assert rows[0].hand_step_s is not None
    worse = replace(rows[0], step_s=1.1 * rows[0].hand_step_s)
    assert worse.behind
    assert "Behind a hand plan: chain, memory ample, 2 micro-batches." in tabulate([worse]).notes[-1]
    assert replace(rows[0], step_s=None).behind
    assert not replace(rows[0], hand_step_s=None).behind
