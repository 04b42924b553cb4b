"""What machines wait for and send in a step, against the edges of the dataflow."""

from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from example_graphs import chain

from cutset.partition.cluster.cost_model import CostModel, pack_seconds
from cutset.partition.cluster.machines import SharedCores, uniform_cluster
from cutset.partition.dataflow.cut import Cut
from cutset.partition.dataflow.dataflow import Dataflow
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.dataflow.machine_schedules import BACKWARD, FORWARD, make_schedules
from cutset.partition.ir.box import split_evenly, volume

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
        expected[edge.source, edge.target] += dataflow.bytes(edge)
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


def test_rows_are_packed_and_unpacked_at_both_ends() -> None:
    dense, cluster = sliced(), uniform_cluster(MACHINES)
    infos = {
        name: msgspec.structs.replace(info, density=0.25 if info.kind == "value" and info.shape else 1.0)
        for name, info in dense.graph.tensors.items()
    }
    sparse = replace(dense, graph=msgspec.structs.replace(dense.graph, tensors=infos))
    costs, slowdown = CostModel(dense.graph.tensors), [1.0] * MACHINES
    before, after = (make_schedules(one, cluster, costs, slowdown, 1) for one in (dense, sparse))
    total = sum(s.seconds for role in after for s in role.segments) - sum(s.seconds for r in before for s in r.segments)
    copies = [(sparse.pieces[copy], edge) for edge in sparse.edges for _, copy in edge.pairs]
    packed = [pack_seconds(volume(piece.box), infos[piece.tensor], cluster.machines[0]) for piece, _ in copies]
    assert total == pytest.approx(4 * sum(packed))  # at both ends, and backward again
    sent = sum(send.bytes for role in after for s in role.segments for send in s.sends)
    assert sent == 2 * sum(sparse.bytes(edge) for edge in sparse.edges) < sum(map(dense.bytes, dense.edges))
