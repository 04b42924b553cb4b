"""What goes over the edges of a program, and what is refused; tensors whose rows of zeros do not travel."""

from collections.abc import Sequence

import pytest
import torch
from cutting import DOUBLE, Subject, run_cut
from dynamic_zoo import DYNAMIC_CASES
from torch import Tensor

from cutset.errors import NetworkError
from cutset.partition.dataflow.cut import Cut, PlacedBox, fuse_boxes
from cutset.partition.dataflow.dataflow import Dataflow
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.ir.box import volume
from cutset.partition.operators.island import ISLAND
from cutset.partition.operators.routed_rows import pack_rows
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryNetwork
from cutset.runtime.channel.message import Message
from cutset.runtime.worker.program import programs
from cutset.runtime.worker.replica_peers import ReplicaPeers
from cutset.runtime.worker.trace import Trace
from cutset.runtime.worker.worker import FORWARD

MACHINES, TOKENS, WIDTH, EXPERTS = 2, 12, 8, 3
SIZE = 8  # bytes of a float64


@pytest.fixture(scope="module")
def experts() -> Subject:
    return Subject(DYNAMIC_CASES["experts"], DOUBLE)


def expert_parallel(of: Subject) -> Cut:
    """Experts by turns on one machine or the other, all else by the batch."""
    boxes, batch = dict[str, Sequence[PlacedBox]](), of.graph.batch_axes[0]
    islands = [op.name for op in of.graph.ops if op.target == ISLAND]
    for op in of.graph.ops:
        loops = [i for i, loop in enumerate(op.nest.loops) if loop.axis == batch and loop.kind != "fixed"]
        parts = [(0, TOKENS // 2), (TOKENS // 2, TOKENS)] if loops else []
        boxes[op.name] = [
            ((*op.nest.box[: loops[0]], part, *op.nest.box[loops[0] + 1 :]), m) for m, part in enumerate(parts)
        ] or [(op.nest.box, islands.index(op.name) % 2 if op.name in islands else 0)]
    return Cut(MACHINES, fuse_boxes(MACHINES, boxes))


def list_routed(dataflow: Dataflow, edge: int) -> list[bool]:
    tensors, pieces = dataflow.graph.tensors, dataflow.pieces
    return [tensors[pieces[copy].tensor].density < 1 for _, copy in dataflow.edges[edge].pairs]


def test_of_experts_only_their_tokens_travel(experts: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    cut, sent = expert_parallel(experts), list[tuple[str, Message]]()
    dataflow, send = lower_cut(experts.graph, cut), Mailbox.send

    def note(self: Mailbox, peer: str, message: Message) -> None:
        sent.append((peer, message))
        send(self, peer, message)

    monkeypatch.setattr(Mailbox, "send", note)
    run_cut(experts, cut)
    rows = 0
    for _, message in sent:
        if message.kind in ("forward", "backward"):
            left = iter(message.tensors)
            with_gradient = [
                routed
                for routed, (_, copy) in zip(list_routed(dataflow, message.edge), pairs(dataflow, message), strict=True)
                if message.kind == "forward" or dataflow.graph.tensors[dataflow.pieces[copy].tensor].gradient
            ]
            for routed in with_gradient:
                part = next(left)
                if routed:
                    assert part.dtype == torch.uint8
                    rows += len(next(left))
            assert next(left, None) is None
    assert rows == 4 * count_travelling(experts)  # to the experts and back, and the same again backward


def pairs(dataflow: Dataflow, message: Message) -> Sequence[tuple[int, int]]:
    return dataflow.edges[message.edge].pairs


def count_travelling(of: Subject) -> int:
    """Tokens of one machine that go to experts of the other, of the model itself."""
    model = of.fresh()[0]
    with torch.no_grad():
        chosen = model.gate(model.first(of.batch.inputs[0])).softmax(-1).topk(2).indices
    machine = torch.arange(TOKENS) // (TOKENS // 2)
    return int((machine[:, None] != chosen % 2).sum())


def test_what_is_expected_is_near_what_travels(experts: Subject) -> None:
    dataflow = lower_cut(experts.graph, expert_parallel(experts))
    expected = sum(
        dataflow.sent_bytes(copy)
        for edge in dataflow.edges
        for (_, copy), routed in zip(edge.pairs, list_routed(dataflow, edge.index), strict=True)
        if routed
    )
    whole = sum(
        volume(dataflow.pieces[copy].box) * SIZE
        for edge in dataflow.edges
        for (_, copy), routed in zip(edge.pairs, list_routed(dataflow, edge.index), strict=True)
        if routed
    )
    assert whole == 2 * EXPERTS * (TOKENS // 2) * WIDTH * SIZE
    assert 0.4 * whole < expected < 0.8 * whole  # two of three experts: 0.67


@pytest.mark.parametrize("fault", ["rows", "bits", "whole"])
def test_packed_rows_of_another_shape_are_refused(experts: Subject, fault: str) -> None:
    dataflow = lower_cut(experts.graph, expert_parallel(experts))
    program = programs(dataflow, training=True)[1]
    channel = MemoryNetwork().channel("worker-0.1")
    peers = ReplicaPeers(program, Mailbox(channel), ["worker-0.0", "worker-0.1"], tag="", trace=Trace(range(0)))
    edge = next(e for e in program.arrivals.values() if any(list_routed(dataflow, e.edge)))
    route = peers.route(FORWARD, edge)
    parts = list[Tensor]()
    for expected in route.expected:
        tensor = torch.ones(expected.shape, dtype=expected.dtype)
        if not expected.packed:
            parts.append(tensor)
            continue
        mask, rows = pack_rows(tensor)
        parts += {"rows": [mask, rows[:1]], "bits": [torch.cat([mask, mask]), rows], "whole": [tensor]}[fault]
    message = Message(route.kind, 0, 0, route.edge, tensors=tuple(parts))
    with pytest.raises(NetworkError, match="E515"):
        peers.check_tensors(route, message)
