"""The cost model, on operators counted by hand."""

import itertools
import math
from dataclasses import replace

import msgspec
import pytest
import torch
from torch import Tensor, nn

from cutset.models.tasks.locally_connected import LocallyConnected2d
from cutset.partition.capture.export import capture
from cutset.partition.cluster.cost_model import (
    MAX_HALVINGS,
    PACKING_CALLS,
    CostModel,
    class_of,
    gather_seconds,
    mask_seconds,
    name_half,
    pack_seconds,
    seconds,
    sum_seconds,
)
from cutset.partition.cluster.machines import Machine, Rate
from cutset.partition.ir.box import split_evenly, volume
from cutset.partition.ir.graph import Graph, Op, read_box
from cutset.partition.operators.registry import TABLE
from cutset.partition.operators.sharding.cost_class import CLASSES, CONTRACTION, CONVOLUTION, ELEMENTWISE, VIEW

B = 6
FREE = Machine("m", flops_per_s=1e30, memory_bandwidth=1e30, operator_s=0.0, gradient_s=0.0)


def graph_of(model: nn.Module, *shape: int) -> Graph:
    return capture(model, lambda out: out.sum(), [torch.zeros(B, *shape)])[0]


def op_of(graph: Graph, target: str, which: int = 0) -> Op:
    return [op for op in graph.ops if target in op.target][which]


class Frozen(nn.Module):
    """A layer whose weight is not trained, behind one that is, or in front of all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4, bias=False) for _ in range(3))
        self.first.weight.requires_grad_(False)
        self.third.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.first(x)))


def test_a_linear_layer_multiplies_once_forward_and_twice_backward():
    graph = graph_of(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4)), 8)
    first, second = (op_of(graph, "linear", i) for i in range(2))
    costs = CostModel(graph.tensors)
    work = costs.work(second, second.nest.box)
    assert work.flops == 2 * B * 16 * 4
    assert work.backward_flops == 2 * work.flops
    assert work.bytes == 4 * (B * 16 + 4 * 16 + 4 + B * 4)
    assert work.gradients == 3
    assert work.accumulated_bytes == 3 * 4 * (4 * 16 + 4)
    assert costs.work(first, first.nest.box).backward_flops == 2 * B * 8 * 16  # the data wants no gradient


def test_backward_costs_one_product_for_each_operand_that_wants_a_gradient():
    graph = graph_of(Frozen(), 4)
    works = [
        CostModel(graph.tensors).work(op_of(graph, "linear", i), op_of(graph, "linear", i).nest.box) for i in range(3)
    ]
    assert [w.backward_flops / w.flops for w in works] == [0.0, 1.0, 1.0]
    assert [w.gradients for w in works] == [0, 1, 1]
    assert [w.accumulated_bytes > 0 for w in works] == [False, True, False]
    assert works[0].seconds(Machine("m"))[1] == 0.0


def test_what_was_measured_of_an_operator_and_of_its_class_scales_its_seconds():
    graph = graph_of(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(4, 4), nn.Linear(4, 4)), 8)
    first, second, *alike = (op_of(graph, "linear", i) for i in range(4))
    costs, machine = CostModel(graph.tensors), Machine("m")
    signature = costs.work(second, second.nest.box).signature
    measured = replace(machine, ratios={signature: (2.0, 3.0), CONTRACTION: (1.5, 0.5)})
    for op, ratios in ((first, (1.5, 0.5)), (second, (3.0, 1.5))):
        half = ((0, B // 2), *op.nest.box[1:])
        for box in (op.nest.box, half):
            plain = costs.seconds(op, box, machine)
            wanted = tuple(pytest.approx(ratio * one) for ratio, one in zip(ratios, plain, strict=True))
            assert costs.seconds(op, box, measured) == wanted
    assert costs.work(first, first.nest.box).signature != signature
    assert len({costs.work(op, op.nest.box).signature for op in alike}) == 1


def test_a_part_costs_as_many_times_its_share_as_halves_of_its_loops_do():
    graph = graph_of(nn.Linear(64, 32), 64)
    op, machine = op_of(graph, "linear"), Machine("m", operator_s=0.0, gradient_s=0.0)
    costs, whole = CostModel(graph.tensors), op.nest.box
    signature = costs.work(op, whole).signature
    sizes = [loop.size for loop in op.nest.loops]
    features, inputs = sizes.index(32), sizes.index(64)
    names = [name_half(signature, op.nest.loops, i) for i in (inputs, features)]
    halves = dict(zip(names, [(1.5, 2.0), (1.25, 1.0)], strict=True))
    slower = replace(machine, ratios=halves)
    for parts, expected in (
        ({}, (1.0, 1.0)),
        ({inputs: 32}, (1.5, 2.0)),
        ({inputs: 16}, (1.5**2, 2.0**2)),
        ({features: 16}, (1.25, 1.0)),
        ({inputs: 32, features: 8}, (1.5 * 1.25**2, 2.0)),
        ({inputs: 1}, (1.5**MAX_HALVINGS, 2.0**MAX_HALVINGS)),  # of so small parts nothing is known
    ):
        box = tuple((0, parts.get(i, stop)) for i, (_, stop) in enumerate(whole))
        pairs = zip(costs.seconds(op, box, slower), costs.seconds(op, box, machine), strict=True)
        assert tuple(slow / plain for slow, plain in pairs) == pytest.approx(expected)


def test_a_view_moves_nothing_but_has_to_be_started():
    graph = graph_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 2)), 1, 6, 6)
    flatten = op_of(graph, "flatten")
    assert class_of(flatten) == VIEW
    machine = Machine("m", operator_s=3.0, gradient_s=5.0)
    assert seconds(flatten, flatten.nest.box, machine, graph.tensors) == (3.0, 5.0)


def test_a_cast_reads_and_makes_the_bytes_of_both_dtypes():
    class Cast(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).to(torch.bfloat16).float().to(torch.float32)

    graph = graph_of(Cast(8, 16), 8)
    lower, higher, none = (op_of(graph, "aten.to", i) for i in range(3))
    works = [CostModel(graph.tensors).work(op, op.nest.box) for op in (lower, higher, none)]
    assert [work.bytes for work in works] == [6 * B * 16, 6 * B * 16, 0]
    assert [work.backward_bytes for work in works] == [10 * B * 16, 8 * B * 16, 0]


def test_an_elementwise_operator_is_bound_by_memory():
    graph = graph_of(nn.Sequential(nn.Linear(8, 16), nn.ReLU()), 8)
    relu = op_of(graph, "relu")
    machine = Machine("m", flops_per_s=1e30, memory_bandwidth=100.0, operator_s=0.0, gradient_s=0.0)
    assert seconds(relu, relu.nest.box, machine, graph.tensors) == pytest.approx(
        (2 * 4 * B * 16 / 100, 3 * 4 * B * 16 / 100)
    )


def test_the_longer_of_computing_and_moving_counts_with_the_rate_of_the_class():
    graph = graph_of(nn.Conv2d(3, 5, 3), 3, 6, 6)
    conv = op_of(graph, "conv2d")
    flops = 2 * 9 * 3 * (B * 5 * 4 * 4)
    rates = {CONVOLUTION: Rate(10.0, 20.0, 1.0, 2.0), CONTRACTION: Rate(1.0, 1.0, 0.0, 0.0)}
    slow = Machine("m", flops_per_s=1.0, rates=rates, memory_bandwidth=1e30)
    assert seconds(conv, conv.nest.box, slow, graph.tensors) == pytest.approx((flops / 10 + 1, flops / 20 + 4))
    narrow = Machine("m", flops_per_s=1e30, memory_bandwidth=10.0, operator_s=0.0, gradient_s=0.0)
    moved = 4 * (B * 3 * 36 + 5 * 27 + 5 + B * 5 * 16)
    assert seconds(conv, conv.nest.box, narrow, graph.tensors)[0] == pytest.approx(moved / 10)


@pytest.mark.first_cases(3)
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Linear(8, 16), (8,)),
        (nn.Conv2d(2, 4, 3, stride=2, padding=1), (2, 9, 9)),
        (LocallyConnected2d(2, 3, size=(6, 6), kernel=3), (2, 6, 6)),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2)), (1, 8, 8)),
        (nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), (3, 8)),
    ],
)
def test_the_boxes_of_an_operator_share_its_flops_and_read_what_the_graph_says(model, shape):
    graph = graph_of(model, *shape)
    costs = CostModel(graph.tensors)
    for op in graph.ops:
        whole = costs.work(op, op.nest.box)
        halves = [split_evenly(loop.size, 1 if loop.kind == "fixed" else 2) for loop in op.nest.loops]
        boxes = list(itertools.product(*halves))
        assert sum(costs.work(op, box).flops for box in boxes) == pytest.approx(whole.flops)
        for box in boxes:
            operands = [(o, graph.tensors[o.tensor]) for o in op.nest.operands]
            found = [(read_box(op.nest, o, box, info.extents), info) for o, info in operands]
            read = sum(volume(region) * info.element_bytes for region, info in found if region is not None)
            out = graph.tensors[op.outputs[0]]
            made = volume(box[: len(out.extents)]) * out.element_bytes
            if class_of(op) != VIEW:
                # What lies beyond the edges, and what only the first part of a sum reads, is counted too.
                assert read + made <= costs.work(op, box).bytes <= 1.7 * (read + made)


def test_an_embedding_reads_the_rows_that_it_looks_up_and_gives_the_whole_table_a_gradient():
    graph, _ = capture(nn.Embedding(100, 8), lambda out: out.sum(), [torch.zeros(B, 3, dtype=torch.int64)])
    op = op_of(graph, "embedding")
    work = CostModel(graph.tensors).work(op, op.nest.box)
    assert work.bytes == 2 * 4 * B * 3 * 8
    assert work.backward_bytes == work.bytes + 4 * 100 * 8
    assert work.accumulated_bytes == 3 * 4 * 100 * 8


def test_the_gradient_of_a_slice_is_as_large_as_what_was_sliced():
    class Half(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, :4]

    graph = graph_of(Half(8, 16), 8)
    op = op_of(graph, "slice", -1)
    work = CostModel(graph.tensors).work(op, op.nest.box)
    assert (work.bytes, work.backward_bytes) == (0, 4 * B * 16)


def test_remembered_costs_are_those_of_a_single_call():
    graph = graph_of(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), 8)
    costs, machine = CostModel(graph.tensors), Machine("m")
    for op in (*graph.ops, *graph.ops):
        assert costs.seconds(op, op.nest.box, machine) == seconds(op, op.nest.box, machine, graph.tensors)


def test_an_operator_has_the_class_that_its_rule_names():
    example = graph_of(nn.Linear(2, 2), 2).ops[0]
    classes = {name: class_of(msgspec.structs.replace(example, sharding_rule=name)) for name in TABLE}
    assert set(classes.values()) <= set(CLASSES)
    assert classes["aten.linear"] == classes["aten.bmm"] == CONTRACTION
    assert classes["aten.relu"] == classes["aten.add"] == ELEMENTWISE
    assert classes["aten.transpose"] == classes["aten.slice"] == VIEW


def test_sums_and_gathers_cost_by_what_they_move():
    machine = Machine("m", memory_bandwidth=10.0, operator_s=1.0, gradient_s=2.0)
    box = ((0, 5), (0, 2))
    assert sum_seconds(box, 3, machine, element_bytes=4) == pytest.approx((1 + 2 * 3 * 40 / 10, 4.0))
    assert gather_seconds(box, 2, machine, element_bytes=4) == pytest.approx((1 + 2 * 2 + 2 * 40 / 10, 2 * 3))
    assert gather_seconds(box, 1, machine, element_bytes=4) == (0.0, 0.0)


def test_packing_costs_calls_and_what_it_moves():
    machine = Machine("m", memory_bandwidth=10.0, operator_s=1.0)
    info = msgspec.structs.replace(graph_of(nn.Linear(2, 2), 2).parameters[0], density=0.25)
    assert pack_seconds(20, info, machine) == pytest.approx(PACKING_CALLS + 20 * 4 * (1 + 2 * 0.25) / 10)


def test_masks_are_drawn_whole_and_in_order_up_to_the_last_that_is_needed():
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(), nn.Linear(16, 4), nn.Dropout(), nn.Linear(4, 2), nn.Dropout())
    graph = graph_of(model.train(), 8)
    first, second, _ = (info.name for info in graph.tensors.values() if info.kind == "random")
    machine = Machine("m", rates={"random": Rate(100.0, 100.0, 1.0, 0.0)})
    assert mask_seconds(graph, [], machine) == 0.0
    assert mask_seconds(graph, [first], machine) == pytest.approx(1 + B * 16 / 100)
    assert mask_seconds(graph, [second], machine) == pytest.approx(2 + B * (16 + 4) / 100)


def test_a_machine_that_is_free_takes_no_time():
    graph = graph_of(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), 8)
    total = [seconds(op, op.nest.box, FREE, graph.tensors) for op in graph.ops]
    assert math.fsum(itertools.chain(*total)) == pytest.approx(0.0, abs=1e-20)
