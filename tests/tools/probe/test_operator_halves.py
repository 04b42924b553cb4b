"""Halves of operators: which are measured, what their programs compute, and what the ratios are."""

from collections import defaultdict
from dataclasses import replace
from itertools import product

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cutset.models.tasks.locally_connected import LocallyConnected2d
from cutset.partition.capture.export import capture
from cutset.partition.cluster.cost_model import CostModel, name_half
from cutset.partition.cluster.machines import Machine
from cutset.partition.ir.box import sizes, volume
from cutset.partition.ir.graph import Graph, Op
from cutset.partition.operators.sharding.cost_class import LOCAL
from cutset.runtime.hosts.heartbeat import RoleProgress
from cutset.runtime.worker.flat_parameters import FlatParameters
from cutset.runtime.worker.prepared_segment import MicroBatch
from cutset.runtime.worker.program import Program, Segment, TransferEdge
from cutset.runtime.worker.segment_runner import SegmentRunner
from cutset.tools.probe import operator_halves
from cutset.tools.probe.operator_halves import MAX_RATIO, OperatorHalves, compute_ratios, list_halves, time_halves
from cutset.tools.probe.operator_timer import OperatorTimer, make_random_states

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
    (one,) = [one for one in halves if one.works[0].signature == costs.work(op, op.nest.box).signature]
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
    measured = {one.works[0].signature for one in halves}
    assert measured.isdisjoint(costs.work(op, op.nest.box).signature for op in masked)


def test_small_operators_and_long_steps_are_left_out(graph):
    costs = CostModel(graph.tensors)
    slow = replace(MACHINE, flops_per_s=1e7)
    large = {one.works[0].signature for one in list_halves(graph, slow)}
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
    factors = [(1.0, 1.0), (1.5, 1.0), (1.25, 1.75), (1.0, 99.0), (0.5, 0.75), (1.0, 2.0)]
    assert len(one.works) == len(factors)  # batch, features - an odd number -, channels, height, width
    measured = [
        (1e-5 + 7 * ahead * f, 2e-5 + 7 * back * b) for (ahead, back), (f, b) in zip(modelled, factors, strict=True)
    ]
    found = compute_ratios([one], [measured], MACHINE)
    assert one.names == tuple(name_half(one.works[0].signature, op.nest.loops, i) for i in one.loops)
    for name, (ahead, back), work in zip(one.names, factors[1:], one.works[1:], strict=True):
        halvings = dict(work.halvings)[name]
        least = [
            (share - start) * whole / (whole - start) / share
            for whole, share, start in zip(
                modelled[0], work.modelled_seconds(MACHINE), work.starts(MACHINE), strict=True
            )
        ]
        assert all(0.5 < one < 1 for one in least)
        expected = [
            min(MAX_RATIO, max(lower, factor) ** (1 / halvings))
            for lower, factor in zip(least, (ahead, back), strict=True)
        ]
        assert found[name] == pytest.approx(expected, rel=1e-2)
    odd = [i for i in one.loops if op.nest.loops[i].size == 9]
    assert odd
    learned, costs = replace(MACHINE, ratios=found), CostModel(graph.tensors)
    whole, start = costs.seconds(op, op.nest.box, MACHINE)[0], one.works[0].starts(MACHINE)[0]
    for i, (ahead, _) in zip(one.loops, factors[1:], strict=True):  # the cost model gives back what was measured
        box = tuple((0, stop // 2 if i == j else stop) for j, (_, stop) in enumerate(op.nest.box))
        plain = costs.seconds(op, box, MACHINE)[0]
        least = (plain - start) / (whole - start) * whole
        assert costs.seconds(op, box, learned)[0] == pytest.approx(max(least, ahead * plain), rel=2e-2)


@pytest.mark.parametrize("machine", [MACHINE, replace(MACHINE, memory_bandwidth=1e8)], ids=["FLOPs", "bytes"])
@pytest.mark.parametrize("target", ["aten.conv2d.default", "aten.linear.default"])
def test_parts_together_take_no_less_than_the_whole(graph, monkeypatch, target, machine):
    """However quick halves were: otherwise a plan could be below the bound that no plan is below."""
    monkeypatch.setattr(operator_halves, "MIN_SHARE", 0.0)
    one = find(graph, list_halves(graph, MACHINE), target)
    (op,) = [op for op in graph.ops if op.target == target]
    quick = [(1.0, 1.0), *[(1e-3, 1e-3)] * len(one.loops)]
    learned, costs = replace(machine, ratios=compute_ratios([one], [quick], machine)), CostModel(graph.tensors)
    assert any(min(ratio) < 1 for ratio in learned.ratios.values())
    whole, starts = costs.seconds(op, op.nest.box, learned), one.works[0].starts(learned)
    for counts in product((1, 2, 3, 4), repeat=len(one.loops)):
        box = list(op.nest.box)
        for i, count in zip(one.loops, counts, strict=True):
            box[i] = (0, max(1, op.nest.loops[i].size // count))
        parts = volume(op.nest.box) / volume(tuple(box))
        for all_of_it, part, start in zip(whole, costs.seconds(op, tuple(box), learned), starts, strict=True):
            assert parts * part >= 0.99 * all_of_it  # ratios are kept with three digits
            assert parts * part >= (all_of_it - start) * (1 - 1e-12)  # by which the bound counts


def test_what_takes_no_longer_than_a_segment_costs_keeps_its_share(graph, monkeypatch):
    monkeypatch.setattr(operator_halves, "MIN_SHARE", 0.0)
    one = find(graph, list_halves(graph, MACHINE), "aten.linear.default")
    parts = [(1.9e-5, 3.9e-5)] * len(one.loops)  # of which nearly all would be the operator's
    assert set(compute_ratios([one], [[(1.9e-5, 3.9e-5), *parts]], MACHINE).values()) == {(1.0, 1.0)}
    assert set(compute_ratios([one], [[(2.1e-5, 4.1e-5), *parts]], MACHINE).values()) != {(1.0, 1.0)}


class Attention(nn.Module):
    """A projection whose output has heads, and one of the same shapes whose input has: their loops differ."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.query, self.out = nn.Linear(48, 64), nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.query(self.first(x)).unflatten(2, (4, 16)).transpose(1, 2)
        return self.out(F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2))


def test_two_of_one_signature_with_other_loops_are_measured_each(monkeypatch):
    monkeypatch.setattr(operator_halves, "MIN_SHARE", 0.0)
    graph = capture(Attention(), lambda out: out.sum(), [torch.zeros(2, 8, 48)])[0]
    costs = CostModel(graph.tensors)
    _, *linear = [op for op in graph.ops if op.target == "aten.linear.default"]
    first, second = ({name for name, _ in _halve_all(costs, op)} for op in linear)
    assert len({costs.work(op, op.nest.box).signature for op in linear}) == 1
    assert first.isdisjoint(second)
    measured = {name for one in list_halves(graph, MACHINE) for name in one.names}
    assert measured & first
    assert measured & second


def _halve_all(costs: CostModel, op: Op) -> tuple[tuple[str, float], ...]:
    return costs.work(op, tuple((start, max(1, stop // 2)) for start, stop in op.nest.box)).halvings


def test_like_operators_count_together(monkeypatch):
    layers = [nn.Linear(32, 32) for _ in range(40)]  # each takes less than a thirtieth of the step
    graph = capture(nn.Sequential(*layers), lambda out: out.sum(), [torch.zeros(64, 32)])[0]
    assert [one.works[0].kind for one in list_halves(graph, MACHINE)] == ["contraction"]


class Looks(nn.Module):
    """It looks up rows by whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(50, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.table(x))


def test_what_reads_whole_numbers_or_is_not_torchs_is_left_out(monkeypatch):
    monkeypatch.setattr(operator_halves, "MIN_SHARE", 0.0)
    graph = capture(Looks(), lambda out: out.sum(), [torch.zeros(6, 4, dtype=torch.long)])[0]
    assert any(op.target == "aten.embedding.default" for op in graph.ops)
    targets = {one.works[0].signature.split()[0] for one in list_halves(graph, MACHINE)}
    assert "aten.linear.default" in targets
    assert "aten.embedding.default" not in targets
    own = msgspec.structs.replace(
        graph, ops=[msgspec.structs.replace(op, target="user.own.default") for op in graph.ops]
    )
    assert list_halves(own, MACHINE) == []


def test_locally_connected_layers_are_halved(monkeypatch):
    monkeypatch.setattr(operator_halves, "BUDGET_S", 0.0)
    net = LocallyConnected2d(3, 4, size=(8, 8), kernel=3)
    graph = capture(net, lambda out: out.sum(), [torch.zeros(6, 3, 8, 8)])[0]
    (one,) = [one for one in list_halves(graph, MACHINE) if one.works[0].kind == LOCAL]
    (times,) = time_halves([one.programs], RoleProgress())
    assert len(times) == len(one.programs) > 1
    assert all(ahead > 0 and back > 0 for ahead, back in times)


def test_gradients_of_parameters_are_added_by_the_half_that_reads_them(graph, monkeypatch):
    """Also where halves overlap, as rows of an image do: machine 0 owns all that its half reads."""
    monkeypatch.setattr(operator_halves, "MIN_SHARE", 0.0)
    one = find(graph, list_halves(graph, MACHINE), "aten.conv2d.default")
    for packed in one.programs:
        program = msgspec.msgpack.decode(packed, type=Program)
        (step,) = [step for segment in program.segments for step in segment.steps if step.op]
        states = make_random_states(program)
        assert {state.piece for state in program.states if state.kind == "parameter"} == {
            piece
            for operand in step.operands
            for piece in operand.sources
            if program.pieces[piece].tensor in ("conv.weight", "conv.bias")
        }
        timer = OperatorTimer(program, [step], states)
        timer.run()
        once = states.gradients.clone()
        timer.run()
        assert once.abs().sum() > 0
        assert torch.allclose(states.gradients, 2 * once)


def test_all_programs_of_all_operators_are_timed(graph, monkeypatch):
    monkeypatch.setattr(operator_halves, "MIN_SHARE", 0.0)
    monkeypatch.setattr(operator_halves, "BUDGET_S", 0.0)
    halves, progress = list_halves(graph, MACHINE), RoleProgress()
    times = time_halves([one.programs for one in halves], progress)
    assert [len(each) for each in times] == [len(one.programs) for one in halves]
    assert all(ahead > 0 for each in times for ahead, _ in each)
    with_gradients = [one.works[0].gradients > 0 for one in halves]
    assert any(with_gradients)
    assert all(back > 0 for each, has in zip(times, with_gradients, strict=True) if has for _, back in each)
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
    assert set(found) == {name for one, t in zip(halves, times, strict=True) if t for name in one.names}
