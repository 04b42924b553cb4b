"""Waits are filled with gradients that nobody waits for: by hand, and on a net that exchanges after each layer."""

from dataclasses import replace

import pytest
from cutting import assert_same, run_cut, run_plain, subject
from example_graphs import chain

from cutset.partition.cluster.cost_model import CostModel
from cutset.partition.cluster.machines import Cluster, Machine, SharedCores
from cutset.partition.dataflow.cut import Cut, one_machine_cut
from cutset.partition.dataflow.dataflow import Dataflow
from cutset.partition.dataflow.fill_waits import fill_waits
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.dataflow.machine_schedules import WEIGHTS
from cutset.partition.dataflow.simulator import simulate
from cutset.partition.planner.planner import find_plan

SPEED = 1000.0


def cluster(count: int, latency_s: float, *, segment_back_s: float = 0.0) -> Cluster:
    free = {"operator_s": 0.0, "gradient_s": 0.0, "memory_bandwidth": 1e30}
    machines = tuple(Machine(f"m{i}", SPEED, 1 << 20, **free, segment_back_s=segment_back_s) for i in range(count))
    return Cluster(machines, 1e30, latency_s)


def there_and_back() -> Dataflow:
    """Three layers, on machines 0, 1 and 0."""
    graph = chain(8, 8, 8, 8)
    on, places = -1, {}
    for op in graph.ops:
        on += op.sharding_rule == "aten.linear"
        places[op.name] = [(op.nest.box, on % 2)]
    return lower_cut(graph, Cut(2, places))


def fill(dataflow: Dataflow, machines: Cluster) -> Cut | None:
    costs = CostModel(dataflow.graph.tensors)
    return fill_waits(dataflow, simulate(dataflow, machines, costs=costs), machines, costs)


def test_a_wait_is_filled_as_far_as_the_gradient_goes() -> None:
    dataflow, machines = there_and_back(), cluster(2, 3.0)
    costs = CostModel(dataflow.graph.tensors)
    layer_s = next(op.flops for op in dataflow.graph.ops if op.sharding_rule == "aten.linear") / SPEED
    before = simulate(dataflow, machines, costs=costs)
    cut = fill_waits(dataflow, before, machines, costs)
    assert cut is not None
    filled = simulate(replace(dataflow, cut=cut), machines, costs=costs)
    assert sum(filled.busy_s) == pytest.approx(sum(before.busy_s))
    assert {a.stage for a in filled.timeline if a.kind == WEIGHTS}, "something is left for later"
    # Machine 0 sends the gradient of what layer 3 read before it computes that of its weights, and so does machine 1
    # with layer 2: each saves a product on the way back.
    assert filled.step_s == pytest.approx(before.step_s - 2 * layer_s)


def test_nothing_is_deferred_where_nobody_waits_or_calls_cost_more() -> None:
    assert fill(there_and_back(), cluster(2, 3.0)) is not None
    assert fill(there_and_back(), cluster(2, 3.0, segment_back_s=100.0)) is None
    graph = chain(8, 8, 8)
    assert fill(lower_cut(graph, one_machine_cut(graph)), cluster(1, 3.0)) is None


def test_processes_that_share_cores_are_left_alone() -> None:
    shared = replace(cluster(2, 3.0), shared=(SharedCores((0, 1), 2),))
    assert fill(there_and_back(), shared) is None


def test_a_plan_for_a_slow_network_fills_its_waits() -> None:
    machines = tuple(Machine(f"m{i}", 20e9) for i in range(4))
    result = find_plan(chain(1024, 1024, 1024, 1024, 1024, batch=64), Cluster(machines, 100e6, 2e-4))
    assert result.winner.name.endswith("waits filled")
    others = [plan for plan in result.plans if not plan.name.endswith("waits filled")]
    assert result.winner.simulation.step_s < 0.97 * min(plan.simulation.step_s for plan in others)


def test_what_is_planned_so_trains_like_plain_torch() -> None:
    of = subject("mlp")
    free = {"operator_s": 0.0, "gradient_s": 0.0, "memory_bandwidth": 1e30}
    slow = Cluster(tuple(Machine(f"m{i}", 1e6, **free) for i in range(3)), 1e9, 1e-3)
    filled = [plan for plan in find_plan(of.graph, slow).plans if plan.cut.deferred]
    assert filled
    for plan in filled:
        assert_same(run_cut(of, plan.cut, micros=2), run_plain(of, micros=2), rtol=1e-11)
