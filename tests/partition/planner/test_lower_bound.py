"""The bound that no plan is below: every plan that is scored is above it, and a perfect one is at it."""

import math
from dataclasses import replace

import pytest
from example_graphs import chain, conv_line
from marking import with_slow

from cutset.partition.cluster.cost_model import CostModel
from cutset.partition.cluster.machines import Cluster, Machine, Rate, uniform_cluster
from cutset.partition.planner.lower_bound import bound_step_seconds
from cutset.partition.planner.planner import find_plan

FREE = {"operator_s": 0.0, "gradient_s": 0.0}
UNLIKE = (Machine("a", 4e9), Machine("b", 1e9, memory_bandwidth=1e9), Machine("c", 2e9, memory_bandwidth=20e9))


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize(
    "cluster",
    with_slow(
        [uniform_cluster(2), Cluster(UNLIKE, math.inf, 0.0)],
        [uniform_cluster(4), Cluster(tuple(replace(m, **FREE) for m in UNLIKE), math.inf, 0.0)],
    ),
)
@pytest.mark.parametrize("graph", [chain(64, 96, 32, batch=48), conv_line(24, batch=8)])
def test_no_plan_is_below(graph, cluster, micro_batches) -> None:  # type: ignore[no-untyped-def]
    result = find_plan(graph, cluster, micro_batches=micro_batches, fewer=True)
    assert result.least_s > 0
    for plan in result.plans:
        assert plan.simulation.step_s >= result.least_s * (1 - 1e-9), plan.name


def test_a_perfect_plan_is_at_the_bound() -> None:
    """Machines that differ in speed alone, work that divides evenly, and a network that takes no time."""
    machines = tuple(Machine(f"m {i}", speed, memory_bandwidth=math.inf, **FREE) for i, speed in enumerate((3e9, 1e9)))
    result = find_plan(chain(64, 64, batch=64), Cluster(machines, math.inf, 0.0))
    assert result.winner.simulation.step_s == pytest.approx(result.least_s, rel=0.01), "but for the mean of the loss"


def test_unlike_rates_are_bounded_too() -> None:
    """One machine is quick at products, the other at all else: nothing is quicker than each at what it does best."""
    graph = conv_line(24, batch=8)
    slow = Rate(1e6, 1e6, 0.0, 0.0)
    cluster = Cluster((Machine("a", rates={"convolution": slow}), Machine("b", 1e6)), math.inf, 0.0)
    costs = CostModel(graph.tensors)
    best = 0.0
    for op in graph.ops:
        starts = [sum(costs.work(op, op.nest.box).starts(machine)) for machine in cluster.machines]
        whole = [sum(costs.seconds(op, op.nest.box, machine)) for machine in cluster.machines]
        best += min(seconds - start for seconds, start in zip(whole, starts, strict=True))
    assert 0 < bound_step_seconds(graph, cluster, costs) <= best
