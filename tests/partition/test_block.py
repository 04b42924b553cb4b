"""Blocks and the graph that METIS sees."""

import torch
from example_graphs import chain, conv_line, mlp_block
from torch import nn

from cutset.partition.block import CutAxes, block_graph, blocks, paired_axes, placed, spatial_axes, unit_axes
from cutset.partition.capture import capture
from cutset.partition.resolve import OPAQUE


def named(graph: object, axes: frozenset[int]) -> set[str]:
    return {graph.axes[axis][0] for axis in axes}  # type: ignore[attr-defined]


def test_no_axes_give_one_block_an_operator() -> None:
    graph = chain(8, 8, 8)
    assert [b.op for b in blocks(graph, CutAxes("layers", frozenset(), 1))] == [op.name for op in graph.ops]


def test_blocks_cover_all_flops() -> None:
    graph = chain(8, 9, 10)
    cut = CutAxes("units", unit_axes(graph), 4)
    assert sum(b.flops for b in blocks(graph, cut)) == sum(op.flops for op in graph.ops)
    assert len(blocks(graph, cut)) == 4 + 4 + 4


def test_reductions_are_cut_where_they_are_asked_for() -> None:
    graph = chain(8, 8, 8)
    cut = CutAxes("all", unit_axes(graph), 2, reductions=True)
    assert len(blocks(graph, cut)) == 4 + 4 + 2


def test_an_edge_has_the_bytes_that_cross_if_its_blocks_part() -> None:
    graph = chain(8, 6, 5, batch=4)
    vertices = blocks(graph, CutAxes("units", unit_axes(graph), 2))
    joined = block_graph(vertices)
    assert [b.op for b in vertices] == ["linear", "linear", "linear_1", "linear_1", *["cross_entropy_loss"] * 2]
    half = 4 * 3 * 4
    assert [joined.bytes_between(a, b) for a in (0, 1) for b in (2, 3)] == [half] * 4
    assert joined.bytes_between(0, 1) == joined.bytes_between(0, 4) == 0


def test_blocks_that_read_one_parameter_are_joined() -> None:
    graph = conv_line(12)
    vertices = blocks(graph, CutAxes("space", spatial_axes(graph), 2))
    joined = block_graph(vertices)
    assert joined.bytes_between(0, 1) == 3 * 4


def test_rows_and_units_are_told_apart() -> None:
    line = conv_line(12)
    assert {size for _, size in (line.axes[a] for a in spatial_axes(line))} == {12}
    assert unit_axes(line) == frozenset()
    assert spatial_axes(chain(8, 6)) == frozenset()


def test_pairs_cut_the_hidden_units_and_not_what_is_added_up() -> None:
    graph = mlp_block(8, 4, 16)
    sizes = {graph.axes[axis][1] for axis in paired_axes(graph)}
    assert 16 in sizes


def test_placed_puts_blocks_back_under_their_operators() -> None:
    graph = chain(8, 6)
    vertices = blocks(graph, CutAxes("units", unit_axes(graph), 2))
    assert {name: [m for _, m in pieces] for name, pieces in placed(vertices, [0, 1, 1, 0]).items()} == {
        "linear": [0, 1],
        "cross_entropy_loss": [1, 0],
    }


def test_an_operator_without_a_row_has_the_flops_that_torch_counts() -> None:
    batch, steps, width, hidden = 2, 3, 8, 16
    model = nn.LSTM(width, hidden, batch_first=True)
    graph, _ = capture(model, lambda out: out[0].mean(), [torch.zeros(batch, steps, width)])
    lstm = next(op for op in graph.ops if "lstm" in op.target)
    assert lstm.row == OPAQUE
    assert lstm.flops == 2 * batch * steps * 4 * hidden * (width + hidden)
