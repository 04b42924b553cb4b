"""When machines that share cores are done, against times worked out by hand."""

from dataclasses import replace

import pytest
from example_graphs import chain

from cutset.partition.cluster.machines import Cluster, Machine, SharedCores
from cutset.partition.dataflow.core_times import CoreTimes
from cutset.partition.dataflow.cut import Cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.dataflow.simulator import simulate

MACHINES = tuple(Machine(f"m{i}") for i in range(3))


def test_a_machine_by_itself_computes_at_full_speed():
    times = CoreTimes(Cluster(MACHINES))
    assert times.start(0, 10.0, 0.0) == [(0, 10.0)]
    assert times.start(1, 10.0, 5.0) == [(1, 15.0)]
    assert times.finish(0, 10.0) == []


def test_two_that_share_a_core_compute_at_half_speed_while_both_do():
    times = CoreTimes(Cluster(MACHINES, shared=(SharedCores((0, 1), 1),)))
    assert times.start(0, 10.0, 0.0) == [(0, 10.0)]
    assert times.start(2, 1.0, 0.0) == [(2, 1.0)]
    assert times.start(1, 10.0, 5.0) == [(0, 15.0), (1, 25.0)]
    assert times.finish(0, 15.0) == [(1, 20.0)]
    assert times.finish(1, 20.0) == []


def test_busy_cores_slow_each_other_down():
    cores = SharedCores((0, 1, 2), 2, contention=1.5)
    assert [cores.slowdown(busy) for busy in (1, 2, 3)] == [1.0, 1.5, 2.25]
    times = CoreTimes(Cluster(MACHINES, shared=(cores,)))
    times.start(0, 3.0, 0.0)
    assert times.start(1, 3.0, 0.0) == [(0, 4.5), (1, 4.5)]
    assert times.start(2, 1.0, 1.5) == [(0, 6.0), (1, 6.0), (2, 3.75)]


def test_idle_cores_handle_what_travels_first():
    pair, single = SharedCores((0, 1), 2, contention=1.5), SharedCores((0,), 2)
    assert [pair.slowdown(1, cores) for cores in (0.0, 1.0, 1.5)] == [1.0, 1.0, 1.0]
    assert [pair.slowdown(2, cores) for cores in (0.0, 0.5, 1.0)] == pytest.approx([1.5, 2.0, 3.0])
    assert pair.slowdown(2, 5.0) == 3.0, "half of the cores are left in any case"
    assert [single.slowdown(1, cores) for cores in (0.0, 0.2, 9.0)] == [1.0, 1.25, 2.0], "others' cores stay theirs"


def test_machines_that_compute_are_slower_while_something_travels():
    times = CoreTimes(Cluster(MACHINES, shared=(SharedCores((0, 1), 2),)))
    times.start(0, 10.0, 0.0)
    assert times.handle(1, 0.5, 2.0) == [(0, 10.0)], "the core of the other machine is idle"
    assert times.start(1, 3.0, 4.0) == [(0, 12.0), (1, 8.0)], "1.5 cores are left for both"
    assert times.handle(1, -0.5, 6.0) == [(0, pytest.approx(10.5)), (1, pytest.approx(7.5))]
    assert times.handle(2, 0.5, 6.0) == [], "a machine with cores of its own that nobody knows to be busy"


def test_what_travels_beside_work_makes_a_step_longer_and_what_is_waited_for_does_not():
    graph = chain(8, 8, 8)
    first, *rest = graph.ops
    own = Cluster((Machine("a", 2e2), Machine("b", 2e2)), 2e2, 0.0)
    free = replace(own, shared=(SharedCores((0, 1), 1),))
    busy = replace(own, shared=(SharedCores((0, 1), 1, network_per_s=1e3),))
    stages = Cut(2, {first.name: [(first.nest.box, 0)]} | {op.name: [(op.nest.box, 1)] for op in rest})
    flow = lower_cut(graph, stages)
    assert simulate(flow, busy).step_s == simulate(flow, free).step_s
    apart, beside = (simulate(flow, one, micro_batches=3).step_s for one in (free, busy))
    (size,) = {edge.bytes for edge in flow.edges}
    handled_s = 2 * 2 * 3 * size / 1e3  # at both ends, forward and backward
    assert apart < beside < apart + handled_s


def test_a_step_of_machines_that_share_a_core_takes_as_long_as_both_compute():
    graph = chain(8, 8, 8)
    first, *rest = graph.ops
    halves = [((0, 2), *first.nest.box[1:]), ((2, 4), *first.nest.box[1:])]
    assert first.nest.box[0] == (0, 4)
    ends = {op.name: [(((0, 2), *op.nest.box[1:]), 0), (((2, 4), *op.nest.box[1:]), 1)] for op in rest}
    cut = Cut(2, {first.name: [(halves[0], 0), (halves[1], 1)]} | ends)
    spelled = lower_cut(graph, cut)
    own = Cluster((Machine("a", 1e3), Machine("b", 1e3)), 1e12, 0.0)
    shared = replace(own, shared=(SharedCores((0, 1), 1),))
    apart, together = (simulate(spelled, cluster) for cluster in (own, shared))
    assert together.step_s == pytest.approx(sum(apart.busy_s))
    assert together.step_s > 1.5 * apart.step_s
