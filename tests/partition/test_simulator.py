"""The step simulator, against times worked out by hand."""

import itertools

import pytest
from example_graphs import chain

from cutset.partition.cluster import Cluster, Machine, alike
from cutset.partition.cut import Cut, one_machine
from cutset.partition.exchange import flow
from cutset.partition.simulator import simulate

SPEED, BANDWIDTH, LATENCY = 1000.0, 100.0, 3.0


def cluster(count: int, operator_s: float = 0.0) -> Cluster:
    machines = tuple(Machine(f"m{i}", SPEED, 1 << 20) for i in range(count))
    return Cluster(machines, BANDWIDTH, LATENCY, operator_s)


def test_one_machine_takes_three_times_its_forward_flops() -> None:
    graph = chain(8, 8, 8)
    result = simulate(flow(graph, one_machine(graph)), cluster(1))
    forward = sum(op.flops for op in graph.ops) / SPEED
    assert result.step_s == pytest.approx(3 * forward)
    assert result.busy_s == (pytest.approx(3 * forward),)
    assert result.flops == (pytest.approx(3 * forward * SPEED),)


def test_starting_an_operator_costs_its_overhead_three_times() -> None:
    graph = chain(8, 8, 8)
    spelled = flow(graph, one_machine(graph))
    slow, fast = simulate(spelled, cluster(1, operator_s=0.5)), simulate(spelled, cluster(1))
    assert slow.step_s - fast.step_s == pytest.approx(3 * 0.5 * len(graph.ops))


def test_a_pipeline_of_two_adds_compute_and_two_messages() -> None:
    graph = chain(8, 8, 8, batch=4)
    first, *rest = graph.ops
    boxes = {first.name: [(first.nest.box, 0)]} | {op.name: [(op.nest.box, 1)] for op in rest}
    result = simulate(flow(graph, Cut(2, boxes)), cluster(2))
    message = 4 * 8 * 4 / BANDWIDTH + LATENCY
    assert result.step_s == pytest.approx(3 * sum(op.flops for op in graph.ops) / SPEED + 2 * message)
    assert [a.kind for a in sorted(result.timeline, key=lambda a: a.start_s)] == [
        "forward",
        "send",
        "forward",
        "backward",
        "send",
        "backward",
    ]


def test_two_messages_from_one_machine_queue_at_its_card() -> None:
    graph = chain(12, 12, 12, batch=4)
    first, second, loss = graph.ops
    thirds = [((second.nest.box[0], (4 * m, 4 * m + 4), second.nest.box[2]), m) for m in range(3)]
    cut = Cut(3, {first.name: [(first.nest.box, 0)], second.name: thirds, loss.name: [(loss.nest.box, 0)]})
    timeline = simulate(flow(graph, cut), cluster(3)).timeline
    sends = sorted((a for a in timeline if a.kind == "send" and a.machine == 0), key=lambda a: a.start_s)[:2]
    assert sends[1].start_s == pytest.approx(sends[0].start_s + 4 * 12 * 4 / BANDWIDTH)


def test_busy_machines_never_do_two_things_at_once() -> None:
    graph = chain(12, 12, 12, 12)
    boxes = {op.name: [(op.nest.box, i % 2)] for i, op in enumerate(graph.ops)}
    result = simulate(flow(graph, Cut(2, boxes)), alike(2))
    for machine in range(2):
        mine = sorted((a.start_s, a.stop_s) for a in result.timeline if a.machine == machine and a.kind != "send")
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(mine))


def test_memory_counts_parameters_three_times_and_activations_with_their_gradients() -> None:
    graph = chain(8, 6, batch=2)
    (used,) = simulate(flow(graph, one_machine(graph)), cluster(1)).memory_bytes
    parameters, activations, loss, batch = 8 * 6, 2 * 6, 1, 2 * 8 * 4 + 2 * 8
    assert used == 3 * 4 * parameters + 2 * 4 * (activations + loss) + batch
