"""What machines wait for and send in a step, against the edges of the dataflow."""

from collections import Counter
from dataclasses import replace

import msgspec
import pytest
import torch
from cutting import pipeline, random_cut
from example_graphs import chain
from random_nets import random_graph
from torch import Tensor, nn

from cutset.partition.capture.export import capture
from cutset.partition.cluster.cost_model import CostModel, pack_seconds
from cutset.partition.cluster.machines import SharedCores, uniform_cluster
from cutset.partition.dataflow.cut import Cut
from cutset.partition.dataflow.dataflow import Dataflow
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.dataflow.machine_schedules import BACKWARD, FORWARD, make_schedules
from cutset.partition.dataflow.simulator import simulate
from cutset.partition.ir.box import split_evenly, volume
from cutset.partition.ir.graph import Graph
from cutset.runtime.worker.program import programs
from cutset.runtime.worker.segment_runner import adds_state_gradients_repeatedly

MACHINES = 3


def sliced() -> Dataflow:
    """Three layers, each cut along its outputs, so that every layer reads all of the one before."""
    graph = chain(12, 12, 12, 12, batch=4)
    boxes = {}
    for op in graph.ops:
        parts = split_evenly(op.nest.loops[-1].size, MACHINES) if op.sharding_rule == "aten.linear" else []
        at = 1 if parts else 0
        boxes[op.name] = [
            ((*op.nest.box[:at], part, *op.nest.box[at + 1 :]), machine) for machine, part in enumerate(parts)
        ] or [(op.nest.box, 0)]
    return lower_cut(graph, Cut(MACHINES, boxes))


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_every_edge_is_sent_once_each_way(micro_batches: int) -> None:
    dataflow = sliced()
    costs = CostModel(dataflow.graph.tensors)
    schedules = make_schedules(dataflow, uniform_cluster(MACHINES), costs, [1.0] * MACHINES, micro_batches)
    sent = {FORWARD: Counter[tuple[int, int]](), BACKWARD: Counter[tuple[int, int]]()}
    for machine, schedule in enumerate(schedules):
        for segment in schedule.segments:
            for send in segment.sends:
                sent[segment.kind][machine, send.target] += send.bytes
    expected = Counter[tuple[int, int]]()
    for edge in dataflow.edges:
        expected[edge.source, edge.target] += edge.bytes
    assert sent[FORWARD] == expected
    assert sent[BACKWARD] == {(target, source): size for (source, target), size in expected.items()}
    waits = sum(segment.waits for schedule in schedules for segment in schedule.segments)
    assert waits == 2 * len(dataflow.edges)


def test_a_message_wakes_the_segment_that_waits_for_it() -> None:
    dataflow = sliced()
    costs = CostModel(dataflow.graph.tensors)
    schedules = make_schedules(dataflow, uniform_cluster(MACHINES), costs, [1.0] * MACHINES, 1)
    woken = Counter[tuple[int, int]]()
    for schedule in schedules:
        for position, segment in enumerate(schedule.segments):
            woken.update((send.target, send.wakes) for send in segment.sends)
            assert segment.kind == (FORWARD if position < len(schedule.segments) / 2 else BACKWARD)
    waits = {
        (machine, position): segment.waits
        for machine, schedule in enumerate(schedules)
        for position, segment in enumerate(schedule.segments)
        if segment.waits
    }
    assert woken == waits


def test_who_shares_memory_is_busy_with_copying_what_it_sends() -> None:
    dataflow, copies_per_s = sliced(), 100.0
    costs, apart = CostModel(dataflow.graph.tensors), uniform_cluster(MACHINES)
    beside = replace(apart, shared=(SharedCores((0, 1), 2, copies_per_s=copies_per_s),))
    schedules = [make_schedules(dataflow, cluster, costs, [1.0] * MACHINES, 1) for cluster in (apart, beside)]
    for machine, (travels, copied) in enumerate(zip(*schedules, strict=True)):
        for before, after in zip(travels.segments, copied.segments, strict=True):
            size = sum(send.bytes for send in before.sends if 2 not in (machine, send.target))
            assert after.seconds - before.seconds == pytest.approx(size / copies_per_s)


def test_no_segment_waits_for_what_cores_do_with_bytes_that_travel() -> None:
    dataflow, costs = sliced(), CostModel(sliced().graph.tensors)
    apart = uniform_cluster(MACHINES)
    beside = replace(apart, shared=(SharedCores((0, 1), 2, network_per_s=100.0),))
    before, after = (make_schedules(dataflow, cluster, costs, [1.0] * MACHINES, 1) for cluster in (apart, beside))
    assert [role.segments for role in before] == [role.segments for role in after]


def test_rows_are_packed_and_unpacked_at_both_ends() -> None:
    dense, cluster = sliced(), uniform_cluster(MACHINES)
    infos = {
        name: msgspec.structs.replace(info, density=0.25 if info.kind == "value" and info.shape else 1.0)
        for name, info in dense.model.tensors.items()
    }
    sparse = lower_cut(msgspec.structs.replace(dense.model, tensors=infos), dense.cut)
    costs, slowdown = CostModel(dense.graph.tensors), [1.0] * MACHINES
    before, after = (make_schedules(one, cluster, costs, slowdown, 1) for one in (dense, sparse))
    total = sum(s.seconds for role in after for s in role.segments) - sum(s.seconds for r in before for s in r.segments)
    copies = [(sparse.pieces[copy], edge) for edge in sparse.edges for _, copy in edge.pairs]
    packed = [
        pack_seconds(volume(piece.box), sparse.graph.tensors[piece.tensor], cluster.machines[0]) for piece, _ in copies
    ]
    assert total == pytest.approx(4 * sum(packed))  # at both ends, and backward again
    sent = sum(send.bytes for role in after for s in role.segments for send in s.sends)
    assert sent == 2 * sum(edge.bytes for edge in sparse.edges) < sum(edge.bytes for edge in dense.edges)


class Twice(nn.Module):
    """A layer that is used twice, or two like it, with another one in between."""

    def __init__(self, layer: nn.Module, again: nn.Module) -> None:
        super().__init__()
        self.layer, self.between, self.again = layer, nn.Linear(16, 16), again

    def forward(self, x: Tensor) -> Tensor:
        return self.again(torch.relu(self.between(self.layer(x))))


def capture_twice(layer: nn.Module, again: nn.Module | None = None) -> Graph:
    return capture(Twice(layer, again or layer), lambda out: out.sum(), [torch.zeros(8, 16)])[0]


def place_between_elsewhere(graph: Graph) -> Dataflow:
    """What is between the two uses on machine 1, all else on machine 0."""
    boxes = {op.name: [(op.nest.box, int("between" in op.module or "relu" in op.target))] for op in graph.ops}
    return lower_cut(graph, Cut(2, boxes))


def list_rules(dataflow: Dataflow) -> list[tuple[bool, bool]]:
    count = dataflow.cut.machines
    costs = CostModel(dataflow.graph.tensors)
    roles = make_schedules(dataflow, uniform_cluster(count), costs, [1.0] * count, 2)
    return [(role.max_in_flight == 1, role.backward_whole) for role in roles]


def test_what_a_machine_does_one_micro_batch_after_the_other_is_what_its_worker_does_so() -> None:
    tied, plain = capture_twice(nn.Linear(16, 16)), chain(16, 16, 16, batch=8)
    averaging = capture_twice(nn.BatchNorm1d(16, affine=False))
    flows = [place_between_elsewhere(tied), place_between_elsewhere(averaging), lower_cut(plain, pipeline(plain, 2))]
    assert [list_rules(flow) for flow in flows] == [
        [(False, True), (False, False)],
        [(True, False), (False, False)],
        [(False, False), (False, False)],
    ]
    for seed in range(12):
        graph = random_graph(seed)
        numbers = [seed * len(graph.ops) + i for i in range(len(graph.ops))]
        flows.append(lower_cut(graph, random_cut(graph, 3, numbers)))
    found = list[tuple[bool, bool]]()
    for flow in flows:
        workers = programs(flow, training=True)
        rules = [(worker.one_at_a_time, adds_state_gradients_repeatedly(worker)) for worker in workers]
        assert list_rules(flow) == rules
        found += rules
    assert {backward_whole for _, backward_whole in found} == {False, True}


def test_gradients_that_are_added_up_keep_micro_batches_apart() -> None:
    """Two uses of one layer's weights: backward of the second micro-batch waits for all of the first."""
    dataflow = place_between_elsewhere(capture_twice(nn.Linear(16, 16)))
    own = place_between_elsewhere(capture_twice(nn.Linear(16, 16), nn.Linear(16, 16)))
    cluster = replace(uniform_cluster(2), latency_s=1.0)  # nearly all that there is to wait for
    steps = [[simulate(flow, cluster, micro_batches=n).step_s for n in (1, 2)] for flow in (own, dataflow)]
    assert steps[0][1] < 1.1 * steps[0][0]  # both are on their way at once
    assert steps[1][0] == pytest.approx(steps[0][0], rel=0.1)
    assert steps[1][1] == pytest.approx(1.5 * steps[1][0], rel=0.1)  # forward at once, backward one after the other


def test_a_buffer_that_is_overwritten_twice_keeps_micro_batches_apart_and_holds_one_at_a_time() -> None:
    averaging = place_between_elsewhere(capture_twice(nn.BatchNorm1d(16, affine=False)))
    plain = place_between_elsewhere(capture_twice(nn.LayerNorm(16, elementwise_affine=False)))
    cluster = replace(uniform_cluster(2), latency_s=1.0)
    twice, once = ([simulate(flow, cluster, micro_batches=n) for n in (1, 2)] for flow in (averaging, plain))
    assert once[1].step_s == pytest.approx(once[0].step_s, rel=0.01)  # there, back, and there again
    assert twice[1].step_s == pytest.approx(5 / 3 * twice[0].step_s, rel=0.01)  # all but the last of it, and all again
    assert [one.memory_bytes[0] for one in twice] == [twice[0].memory_bytes[0]] * 2
    assert once[1].memory_bytes[0] > once[0].memory_bytes[0]
