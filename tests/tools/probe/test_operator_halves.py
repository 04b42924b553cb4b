"""Halves of operators: which are measured, what their programs compute, and what the ratios are."""

from collections import defaultdict
from dataclasses import replace

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cutset.partition.capture.export import capture
from cutset.partition.cluster.cost_model import CostModel, name_half
from cutset.partition.cluster.machines import Machine
from cutset.partition.ir.box import sizes
from cutset.partition.ir.graph import Graph
from cutset.runtime.hosts.heartbeat import RoleProgress
from cutset.runtime.worker.flat_parameters import FlatParameters
from cutset.runtime.worker.prepared_segment import MicroBatch
from cutset.runtime.worker.program import Program, Segment, TransferEdge
from cutset.runtime.worker.segment_runner import SegmentRunner
from cutset.tools.probe import operator_halves
from cutset.tools.probe.operator_halves import MAX_RATIO, OperatorHalves, compute_ratios, list_halves, time_halves

MACHINE = Machine("here", segment_s=1e-5, segment_back_s=2e-5)


class Net(nn.Module):
    """A convolution, dropout, a layer of odd width, and some small operators."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(4, 8, 3), nn.Linear(8 * 6 * 6, 9)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.conv(x)), 0.5, training=True)
        return self.linear(x.flatten(1)).tanh()


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture(Net(), lambda out, wanted: F.mse_loss(out, wanted), [torch.zeros(6, 4, 8, 8)], [torch.zeros(6, 9)])[
        0
    ]


def find(graph: Graph, halves: list[OperatorHalves], target: str) -> OperatorHalves:
    costs = CostModel(graph.tensors)
    (op,) = [op for op in graph.ops if op.target == target]
    (one,) = [one for one in halves if one.signature == costs.work(op, op.nest.box).signature]
    return one


def test_large_operators_are_halved_along_each_loop_that_can_be_cut(graph, monkeypatch):
    monkeypatch.setattr(operator_halves, "MIN_SHARE", 0.0)
    halves = list_halves(graph, MACHINE)
    costs = CostModel(graph.tensors)
    for target in ("aten.conv2d.default", "aten.linear.default", "aten.relu.default"):
        (op,) = [op for op in graph.ops if op.target == target]
        one = find(graph, halves, target)
        assert one.loops == tuple(i for i, loop in enumerate(op.nest.loops) if loop.kind != "fixed" and loop.size > 1)
        assert one.works[0] == costs.work(op, op.nest.box)
        for i, work, packed in zip(one.loops, one.works[1:], one.programs[1:], strict=True):
            box = tuple((0, stop // 2 if i == j else stop) for j, (_, stop) in enumerate(op.nest.box))
            assert work == costs.work(op, box)
            program = msgspec.msgpack.decode(packed, type=Program)
            assert [step.box for segment in program.segments for step in segment.steps if step.op] == [box]
    masked = [op for op in graph.ops if any(graph.tensors[name].kind == "random" for name in op.inputs)]
    assert masked
    measured = {one.signature for one in halves}
    assert measured.isdisjoint(costs.work(op, op.nest.box).signature for op in masked)


def test_small_operators_and_long_steps_are_left_out(graph):
    costs = CostModel(graph.tensors)
    slow = replace(MACHINE, flops_per_s=1e7)
    large = {one.signature for one in list_halves(graph, slow)}
    signatures = {op.target: costs.work(op, op.nest.box).signature for op in graph.ops}
    assert signatures["aten.conv2d.default"] in large
    assert signatures["aten.relu.default"] not in large
    assert list_halves(graph, replace(MACHINE, flops_per_s=1e3)) == []


def test_a_half_reads_and_computes_its_part_alone(graph, monkeypatch):
    """Against torch: half of the channels, of the input channels, and of the batch of the convolution."""
    monkeypatch.setattr(operator_halves, "MIN_SHARE", 0.0)
    one = find(graph, list_halves(graph, MACHINE), "aten.conv2d.default")
    (op,) = [op for op in graph.ops if op.target == "aten.conv2d.default"]
    given = {name: torch.randn(graph.tensors[name].shape) for name in op.inputs}
    x, weight, bias = (given[name] for name in op.inputs)
    for loop, packed in zip(one.loops, one.programs[1:], strict=True):
        program = msgspec.msgpack.decode(packed, type=Program)
        out, inputs = run(program, given)
        size = op.nest.loops[loop].size // 2
        if loop < 4:  # of the output
            expected = F.conv2d(x, weight, bias).narrow(loop, 0, size)
        else:
            expected = F.conv2d(x[:, :size], weight[:, :size], bias)
        assert torch.allclose(out, expected.reshape(out.shape), atol=1e-5)
        if loop == 0:
            assert [tensor.numel() for tensor in inputs[op.inputs[0]]] == [x[:size].numel()]


def run(program: Program, given: dict[str, Tensor]) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """The output of a program of one operator, and the pieces that it was given besides its state."""
    states = FlatParameters(program)
    for (name, box), piece in states.pieces.items():
        piece.data.copy_(cut(given[name], box, piece.shape))
    (step,) = [step for segment in program.segments for step in segment.steps if step.op]
    edge = TransferEdge(0, 0, step.makes, tuple(program.pieces[piece].box for piece in step.makes))
    alone = msgspec.structs.replace(program, segments=(Segment(0, (step,), (), (edge,), ()),))
    runner, micro, own = SegmentRunner(alone, states), MicroBatch(0, {}, {}), {s.piece for s in program.states}
    inputs = defaultdict[str, list[Tensor]](list)
    for piece in {source for operand in step.operands for source in operand.sources} - own:
        info = program.pieces[piece]
        inputs[info.tensor].append(cut(given[info.tensor], info.box, sizes(info.box)))
        runner.enter(micro, piece, inputs[info.tensor][-1].clone())
    return runner.forward(micro, 0)[0][0], inputs


def cut(tensor: Tensor, box, shape) -> Tensor:
    assert len(box) == tensor.dim()
    return tensor[tuple(slice(*interval) for interval in box)].reshape(shape)


def test_ratios_say_how_many_times_its_share_a_half_takes(graph, monkeypatch):
    monkeypatch.setattr(operator_halves, "MIN_SHARE", 0.0)
    one = find(graph, list_halves(graph, MACHINE), "aten.linear.default")
    (op,) = [op for op in graph.ops if op.target == "aten.linear.default"]
    modelled = [work.modelled_seconds(MACHINE) for work in one.works]
    factors = [(1.0, 1.0), (1.5, 1.0), (1.25, 3.0), (1.0, 99.0), (0.5, 0.75), (1.0, 2.0)]
    assert len(one.works) == len(factors)  # batch, features - an odd number -, channels, height, width
    measured = [
        (1e-5 + 7 * ahead * f, 2e-5 + 7 * back * b) for (ahead, back), (f, b) in zip(modelled, factors, strict=True)
    ]
    found = compute_ratios([one], [measured], MACHINE)
    for loop, (ahead, back), work in zip(one.loops, factors[1:], one.works[1:], strict=True):
        halvings = dict(work.halvings)[name_half(one.signature, loop)]
        expected = [min(MAX_RATIO, max(1.0, factor ** (1 / halvings))) for factor in (ahead, back)]
        assert found[name_half(one.signature, loop)] == pytest.approx(expected, rel=1e-2)
    odd = [i for i in one.loops if op.nest.loops[i].size == 9]
    assert odd
    learned, costs = replace(MACHINE, ratios=found), CostModel(graph.tensors)
    for i, (ahead, _) in zip(one.loops, factors[1:], strict=True):  # the cost model gives back what was measured
        box = tuple((0, stop // 2 if i == j else stop) for j, (_, stop) in enumerate(op.nest.box))
        plain = costs.seconds(op, box, MACHINE)[0]
        assert costs.seconds(op, box, learned)[0] == pytest.approx(max(1.0, ahead) * plain, rel=2e-2)


def test_all_programs_of_all_operators_are_timed(graph, monkeypatch):
    monkeypatch.setattr(operator_halves, "MIN_SHARE", 0.0)
    monkeypatch.setattr(operator_halves, "BUDGET_S", 0.0)
    halves, progress = list_halves(graph, MACHINE), RoleProgress()
    times = time_halves([one.programs for one in halves], progress)
    assert [len(each) for each in times] == [len(one.programs) for one in halves]
    assert all(ahead > 0 for each in times for ahead, _ in each)
    assert str(progress.value).startswith(f"halves of operator {len(halves) - 1}")


class Probabilities(nn.Module):
    """Its loss refuses numbers that are no probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.linear(x))


def test_what_refuses_made_up_numbers_keeps_its_share(monkeypatch):
    monkeypatch.setattr(operator_halves, "MIN_SHARE", 0.0)
    monkeypatch.setattr(operator_halves, "BUDGET_S", 0.0)
    graph = capture(Probabilities(), F.binary_cross_entropy, [torch.rand(6, 16)], [torch.rand(6, 8)])[0]
    halves = list_halves(graph, MACHINE)
    times = time_halves([one.programs for one in halves], RoleProgress())
    refused = halves.index(find(graph, halves, "aten.binary_cross_entropy.default"))
    assert [bool(each) for each in times] == [i != refused for i in range(len(halves))]
    found = compute_ratios(halves, times, MACHINE)
    assert {name.split(" / ")[0] for name in found} == {
        one.signature for one, t in zip(halves, times, strict=True) if t
    }
