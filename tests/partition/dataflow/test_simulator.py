"""The step simulator, against times worked out by hand."""

import itertools
from dataclasses import replace

import pytest
from example_graphs import chain

from cutset.partition.cluster.machines import Cluster, Machine, NetworkLink, uniform_cluster
from cutset.partition.dataflow.cut import Cut, one_machine_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.dataflow.machine_schedules import COLD
from cutset.partition.dataflow.simulator import simulate
from cutset.partition.ir.graph import Graph

SPEED, BANDWIDTH, LATENCY = 1000.0, 100.0, 3.0


def cluster(count: int, **costs: float) -> Cluster:
    free = {"operator_s": 0.0, "gradient_s": 0.0, "memory_bandwidth": 1e30}
    machines = tuple(Machine(f"m{i}", SPEED, 1 << 20, **free | costs) for i in range(count))
    return Cluster(machines, BANDWIDTH, LATENCY)


def compute(graph: Graph) -> float:
    """Seconds of a chain: the first layer gives a gradient to its weight alone, the others to their input too."""
    first, *others = graph.ops
    back = [2 if op.sharding_rule == "aten.linear" else 1 for op in others]
    return (2 * first.flops + sum((1 + n) * op.flops for n, op in zip(back, others, strict=True))) / SPEED


def test_one_machine_computes_forward_and_every_gradient() -> None:
    graph = chain(8, 8, 8)
    result = simulate(lower_cut(graph, one_machine_cut(graph)), cluster(1))
    assert result.step_s == pytest.approx(compute(graph))
    assert result.busy_s == (pytest.approx(compute(graph)),)
    assert result.flops == (pytest.approx(compute(graph) * SPEED),)


def test_starting_operators_segments_and_the_step_costs_what_the_machine_says() -> None:
    graph = chain(8, 8, 8)
    spelled = lower_cut(graph, one_machine_cut(graph))
    fast = simulate(spelled, cluster(1)).step_s
    assert simulate(spelled, cluster(1, operator_s=0.5)).step_s - fast == pytest.approx(0.5 * len(graph.ops))
    assert simulate(spelled, cluster(1, gradient_s=0.5)).step_s - fast == pytest.approx(0.5 * 4)
    assert simulate(spelled, cluster(1, segment_s=2.0, segment_back_s=3.0)).step_s - fast == pytest.approx(5)
    assert simulate(spelled, cluster(1, step_s=7.0)).step_s - fast == pytest.approx(7)


def test_a_slow_machine_takes_longer() -> None:
    graph = chain(8, 8, 8)
    spelled = lower_cut(graph, one_machine_cut(graph))
    assert simulate(spelled, cluster(1), slowdown=[2.5]).step_s == pytest.approx(2.5 * compute(graph))


def pipeline(graph: Graph) -> Cut:
    first, *rest = graph.ops
    return Cut(2, {first.name: [(first.nest.box, 0)]} | {op.name: [(op.nest.box, 1)] for op in rest})


def test_a_pipeline_of_two_adds_compute_and_two_messages() -> None:
    graph = chain(8, 8, 8, batch=4)
    result = simulate(lower_cut(graph, pipeline(graph)), cluster(2))
    message = 4 * 8 * 4 / BANDWIDTH + LATENCY
    assert result.step_s == pytest.approx(compute(graph) + 2 * message)
    assert [a.kind for a in sorted(result.timeline, key=lambda a: a.start_s)] == [
        "forward",
        "send",
        "forward",
        "backward",
        "send",
        "backward",
    ]


def test_a_link_of_its_own_is_used_instead_of_the_cards() -> None:
    graph = chain(8, 8, 8, batch=4)
    links = (NetworkLink(0, 1, BANDWIDTH * 2, 1.0),)
    result = simulate(lower_cut(graph, pipeline(graph)), replace(cluster(2), links=links))
    there, back = 4 * 8 * 4 / BANDWIDTH / 2 + 1.0, 4 * 8 * 4 / BANDWIDTH + LATENCY
    assert result.step_s == pytest.approx(compute(graph) + there + back)


def test_a_worker_spends_time_on_its_messages() -> None:
    graph = chain(8, 8, 8, batch=4)
    spelled = lower_cut(graph, pipeline(graph))
    dear, free = (simulate(spelled, cluster(2, message_s=s)).step_s for s in (0.5, 0.0))
    assert dear - free == pytest.approx(4 * 0.5)  # two messages, two ends


def test_operators_start_more_slowly_in_a_step_that_waits_for_others() -> None:
    graph = chain(8, 8, 8, batch=4)
    for cut, times in ((pipeline(graph), 1.5), (one_machine_cut(graph), 1.0)):
        spelled = lower_cut(graph, cut)
        free, warm, cold = (
            simulate(spelled, cluster(cut.machines, operator_s=s, gradient_s=s, cold=c)).step_s
            for s, c in ((0.0, 0.0), (0.5, 0.0), (0.5, 0.5))
        )
        assert cold - free == pytest.approx(times * (warm - free))


def test_only_operators_next_to_a_wait_start_more_slowly() -> None:
    extra = []
    for count in (1, COLD, COLD + 4):
        graph = chain(*([8] * (2 * count + 1)), batch=4)
        spelled = lower_cut(graph, pipeline(graph))
        warm, cold = (simulate(spelled, cluster(2, operator_s=0.5, gradient_s=0.5, cold=c)).step_s for c in (0.0, 1.0))
        extra.append(cold - warm)
    assert extra[0] < extra[1] == pytest.approx(extra[2])


def test_micro_batches_overlap_in_a_pipeline() -> None:
    graph = chain(64, 64, 64, batch=4)
    spelled = lower_cut(graph, pipeline(graph))
    quick = replace(cluster(2), bandwidth=1e12, latency_s=0.0)
    one, four = (simulate(spelled, quick, micro_batches=m) for m in (1, 4))
    assert four.flops == tuple(pytest.approx(4 * flops) for flops in one.flops)
    longest = max(one.busy_s)
    assert 4 * longest <= four.step_s < 4 * one.step_s * 0.8
    forward = [a for a in four.timeline if a.kind == "forward" and a.machine == 0]
    assert [a.label for a in forward] == [f"forward 0 of micro-batch {m}" for m in range(4)]


def test_no_more_micro_batches_are_in_flight_than_there_are_machines() -> None:
    graph = chain(64, 64, 64, batch=4)
    timeline = simulate(lower_cut(graph, pipeline(graph)), cluster(2), micro_batches=6).timeline
    mine = sorted((a.start_s, a.kind) for a in timeline if a.machine == 0 and a.kind != "send")
    begun = list(itertools.accumulate(1 if kind == "forward" else -1 for _, kind in mine))
    assert max(begun) == 2


def test_two_messages_from_one_machine_queue_at_its_card() -> None:
    graph = chain(12, 12, 12, batch=4)
    first, second, loss = graph.ops
    thirds = [((second.nest.box[0], (4 * m, 4 * m + 4), second.nest.box[2]), m) for m in range(3)]
    cut = Cut(3, {first.name: [(first.nest.box, 0)], second.name: thirds, loss.name: [(loss.nest.box, 0)]})
    timeline = simulate(lower_cut(graph, cut), cluster(3)).timeline
    sends = sorted((a for a in timeline if a.kind == "send" and a.machine == 0), key=lambda a: a.start_s)[:2]
    assert sends[1].start_s == pytest.approx(sends[0].start_s + 4 * 12 * 4 / BANDWIDTH)


def test_busy_machines_never_do_two_things_at_once() -> None:
    graph = chain(12, 12, 12, 12)
    boxes = {op.name: [(op.nest.box, i % 2)] for i, op in enumerate(graph.ops)}
    result = simulate(lower_cut(graph, Cut(2, boxes)), uniform_cluster(2))
    for machine in range(2):
        mine = sorted((a.start_s, a.stop_s) for a in result.timeline if a.machine == machine and a.kind != "send")
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(mine))


def test_memory_counts_parameters_three_times_and_activations_with_their_gradients() -> None:
    graph = chain(8, 6, batch=2)
    (used,) = simulate(lower_cut(graph, one_machine_cut(graph)), cluster(1)).memory_bytes
    parameters, activations, loss, batch = 8 * 6, 2 * 6, 1, 2 * 8 * 4 + 2 * 8
    added = 4 * parameters  # a gradient that is about to be added
    assert used == 3 * 4 * parameters + added + 2 * 4 * (activations + loss) + batch
