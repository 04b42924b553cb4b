"""Axes through slices, concatenations, repetitions and views that do not divide."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cutset.partition.capture.export import capture
from cutset.partition.ir.graph import Fixed, Follow, Graph, Op, Window

Forward = Callable[[Tensor], Tensor]


class Calls(nn.Module):
    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def captured(function: Forward, *shape: int) -> Graph:
    return capture(Calls(function), None, (torch.zeros(shape),))[0]


def called(graph: Graph, name: str) -> list[Op]:
    return [op for op in graph.ops if op.target.split(".")[1] == name]


def loops(op: Op) -> list[tuple[int, str]]:
    return [(loop.size, loop.kind) for loop in op.nest.loops]


def heads(x: Tensor) -> Tensor:
    """Two of three matrices side by side, each of 4 heads of 5."""
    first, second = x[:, :20], x[:, 20:40]
    return first.reshape(-1, 4, 5) * second.reshape(-1, 4, 5)


def test_slices_of_a_fused_projection_follow_its_heads() -> None:
    graph = captured(heads, 7, 60)
    for position, op in enumerate(called(graph, "slice")):
        assert loops(op) == [(7, "parallel"), (4, "parallel"), (5, "parallel")]
        (operand,) = op.nest.operands
        assert operand.readings == (Follow(0), Fixed(position, position + 1), Follow(1), Follow(2))
    assert graph.tensors["input.0"].sizes == ((7,), (3, 4, 5))


def test_a_slice_that_no_view_splits_is_a_window() -> None:
    (op,) = called(captured(lambda x: x[:, 20:40] * 2, 7, 60), "slice")
    assert op.nest.operands[0].readings == (Follow(0), Window(1, 1, 20, 1, False))


def test_several_chunks_are_a_window_over_them() -> None:
    (op, _) = called(captured(lambda x: x[:, 20:].reshape(-1, 2, 4, 5) + x[:, :1, None, None], 7, 60), "slice")
    assert loops(op) == [(7, "parallel"), (2, "parallel"), (4, "parallel"), (5, "parallel")]
    assert op.nest.operands[0].readings == (Follow(0), Window(1, 1, 1, 1, False), Follow(2), Follow(3))


def test_a_slice_across_chunks_keeps_its_dimension_whole() -> None:
    (op,) = called(captured(lambda x: x[:, 3:23].reshape(-1, 4, 5), 7, 60), "slice")
    assert loops(op) == [(7, "parallel"), (4, "fixed"), (5, "fixed")]
    assert op.nest.operands[0].readings == (Follow(0), None)


def test_concatenated_chunks_follow_what_is_inside_of_them() -> None:
    graph = captured(lambda x: torch.cat([x.reshape(-1, 4, 5).flatten(1), x], 1), 7, 20)
    (op,) = called(graph, "cat")
    assert loops(op) == [(7, "parallel"), (2, "fixed"), (4, "parallel"), (5, "parallel")]


def test_a_selected_index_of_several_axes_is_one_place_in_each() -> None:
    graph = captured(lambda x: x.reshape(-1, 4, 5).sum((1, 2)) * x[:, 13], 7, 20)
    (op,) = called(graph, "select")
    assert op.nest.operands[0].readings == (Follow(0), Fixed(2, 3), Fixed(3, 4))


def test_repeated_heads_are_an_axis_beside_the_groups() -> None:
    (op,) = called(captured(lambda x: x.repeat_interleave(3, 1), 7, 4), "repeat_interleave")
    assert loops(op) == [(7, "parallel"), (4, "parallel"), (3, "parallel")]
    assert op.nest.operands[0].readings == (Follow(0), Follow(1))


def test_a_view_that_does_not_divide_keeps_only_these_dimensions_whole() -> None:
    (op,) = called(captured(lambda x: x.reshape(7, 3, 8, 5), 7, 4, 6, 5), "reshape")
    assert loops(op) == [(7, "parallel"), (3, "fixed"), (8, "fixed"), (5, "parallel")]
    assert op.nest.operands[0].readings == (Follow(0), None, None, Follow(3))


def test_what_one_view_splits_another_may_keep_whole() -> None:
    graph = captured(lambda x: x.reshape(7, 4, 6).sum((1, 2)) + x.reshape(7, 3, 8).sum((1, 2)), 7, 24)
    first, second = called(graph, "reshape")
    assert loops(first) == [(7, "parallel"), (4, "parallel"), (6, "parallel")]
    assert loops(second) == [(7, "parallel"), (3, "fixed"), (8, "fixed")]


def gates(x: Tensor) -> Tensor:
    """An LSTM's cell."""
    i, f, g, o = x.chunk(4, -1)
    return (i.sigmoid() * g.tanh() + f.sigmoid()).tanh() * o.sigmoid()


def test_the_parts_of_a_fused_projection_share_their_inner_axis() -> None:
    graph = captured(gates, 7, 20)
    assert graph.tensors["input.0"].sizes == ((7,), (4, 5))
    slices = called(graph, "slice")
    assert [op.nest.operands[0].readings[1] for op in slices] == [Fixed(i, i + 1) for i in range(4)]
    assert {op.nest.loops[1].axis for op in graph.ops if len(op.nest.loops) == 2} == {slices[0].nest.loops[1].axis}


def test_parts_that_a_convolution_slides_over_stay_windows() -> None:
    def halves(x: Tensor) -> Tensor:
        left, right = torch.nn.functional.avg_pool1d(x, 3, 1, 1).chunk(2, -1)
        return left * right

    graph = captured(halves, 7, 4, 10)
    first, second = called(graph, "slice")
    assert isinstance(second.nest.operands[0].readings[2], Window)
    assert loops(first)[2] == (5, "parallel")


def test_slices_that_overlap_are_no_parts() -> None:
    graph = captured(lambda x: x[:, :4] * x[:, 1:5], 7, 8)
    assert graph.tensors["input.0"].sizes == ((7,), (8,))
