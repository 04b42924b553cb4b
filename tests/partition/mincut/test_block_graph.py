"""Blocks and the graph that METIS sees."""

import msgspec
import numpy as np
import torch
from example_graphs import chain, conv_line, mlp_block
from torch import nn
from weighted_graphs import transformer

from cutset.partition.capture.export import capture
from cutset.partition.ir.graph import OPAQUE, Graph
from cutset.partition.mincut.block_graph import boxes_by_operator, build_block_graph
from cutset.partition.mincut.blocks import split_into_blocks
from cutset.partition.mincut.cut_axes import CutAxes, paired_axes, parts_by_op, spatial_axes, unit_axes, whole_axes
from cutset.partition.mincut.metis import partition_metis


def named(graph: object, axes: frozenset[int]) -> set[str]:
    return {graph.axes[axis][0] for axis in axes}  # type: ignore[attr-defined]


def test_no_axes_give_one_block_an_operator() -> None:
    graph = chain(8, 8, 8)
    assert [b.op for b in split_into_blocks(graph, CutAxes("layers", frozenset(), 1))] == [op.name for op in graph.ops]


def test_blocks_cover_all_flops() -> None:
    graph = chain(8, 9, 10)
    cut = CutAxes("units", unit_axes(graph), 4)
    assert sum(b.flops for b in split_into_blocks(graph, cut)) == sum(op.flops for op in graph.ops)
    assert len(split_into_blocks(graph, cut)) == 4 + 4 + 4


def test_reductions_are_cut_where_they_are_asked_for() -> None:
    graph = chain(8, 8, 8)
    cut = CutAxes("all", unit_axes(graph), 2, reductions=True)
    assert len(split_into_blocks(graph, cut)) == 4 + 4 + 2


def test_an_edge_has_the_bytes_that_cross_if_its_blocks_part() -> None:
    graph = chain(8, 6, 5, batch=4)
    vertices = split_into_blocks(graph, CutAxes("units", unit_axes(graph), 2))
    joined = build_block_graph(vertices)
    assert [b.op for b in vertices] == ["linear", "linear", "linear_1", "linear_1", *["cross_entropy_loss"] * 2]
    half = 4 * 3 * 4
    assert [joined.bytes_between(a, b) for a in (0, 1) for b in (2, 3)] == [half] * 4
    assert joined.bytes_between(0, 1) == joined.bytes_between(0, 4) == 0


def test_blocks_that_read_one_parameter_are_joined() -> None:
    graph = conv_line(12)
    vertices = split_into_blocks(graph, CutAxes("space", spatial_axes(graph), 2))
    joined = build_block_graph(vertices)
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
    vertices = split_into_blocks(graph, CutAxes("units", unit_axes(graph), 2))
    assert {name: [m for _, m in pieces] for name, pieces in boxes_by_operator(vertices, [0, 1, 1, 0]).items()} == {
        "linear": [0, 1],
        "cross_entropy_loss": [1, 0],
    }


def test_an_operator_without_a_row_has_the_flops_that_torch_counts() -> None:
    batch, steps, width, hidden = 2, 3, 8, 16
    model = nn.LSTM(width, hidden, batch_first=True)
    graph, _ = capture(model, lambda out: out[0].mean(), [torch.zeros(batch, steps, width)])
    lstm = next(op for op in graph.ops if "lstm" in op.target)
    assert lstm.sharding_rule == OPAQUE
    products = 2 * batch * steps * 4 * hidden * (width + hidden)
    assert products <= lstm.flops <= 1.1 * products  # and what is done element by element


def grids(graph: Graph, cut: CutAxes) -> dict[str, tuple[int, ...]]:
    return {name: tuple(n for n in grid.shape if n > 1) for name, grid in split_into_blocks(graph, cut).grids.items()}


def test_light_operators_are_cut_along_tokens_where_the_set_has_none_of_their_axes() -> None:
    graph = transformer(1, width=16, heads=4, tokens=6)
    shapes = grids(graph, CutAxes("pairs", paired_axes(graph), 3, reductions=True))
    assert {shapes[name] for name in ("layer_norm", "add", "layer_norm_1", "add_1", "mean")} == {(3,)}
    assert {shapes[name] for name in ("linear", "linear_1", "linear_2", "gelu", "linear_3")} == {(3,)}
    tokens = graph.tensors["layer_norm"].axes[1]
    parts = parts_by_op(graph, CutAxes("pairs", paired_axes(graph), 3, reductions=True))
    assert parts["layer_norm"] == parts["add_1"] == dict.fromkeys(tokens, 3)
    assert not parts["linear"].keys() & set(tokens)
    bare = parts_by_op(graph, CutAxes("pairs", paired_axes(graph), 3, reductions=True, light=False))
    assert bare["layer_norm"] == {}


def test_a_table_of_words_is_not_light() -> None:
    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(50, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.words(x))

    graph, _ = capture(Tables(), lambda y: y.mean(), [torch.zeros(4, 6, dtype=torch.int64)])
    shapes = grids(graph, CutAxes("units", unit_axes(graph) - {graph.tensors["embedding"].axes[2][0]}, 2))
    assert shapes["embedding"] == ()


def test_heads_are_cut_before_their_width_and_projections_not_apart() -> None:
    graph = transformer(1, width=16, heads=4, tokens=6)
    whole = {graph.axes[axis][1] for axis in whole_axes(graph) & unit_axes(graph)}
    assert whole == {3, 4}  # queries, keys and values; the width of a head
    assert {graph.axes[axis][1] for axis in paired_axes(graph)} == {4, 64}
    three, heads, width = graph.tensors["view"].axes[2:]
    for parts, expected in ((2, {heads: 2}), (4, {heads: 4}), (8, {heads: 4, width: 2})):
        found = parts_by_op(graph, CutAxes("units", unit_axes(graph), parts))["linear"]
        assert {(axis,): n for axis, n in found.items() if n > 1} == expected
        assert found[three[0]] == 1


def test_views_are_cut_as_what_they_read_and_stay_with_it() -> None:
    graph = transformer(1, width=16, heads=4, tokens=6)
    found = split_into_blocks(graph, CutAxes("pairs", paired_axes(graph), 4, reductions=True))
    anchor = build_block_graph(found).anchor
    op_of = [block.op for block in found]
    views = ("view", "permute", "getitem", "getitem_1", "getitem_2", "transpose", "reshape")
    ends = {op_of[i]: op_of[h] for i, h in enumerate(anchor.tolist()) if i != h}
    assert set(ends) == set(views)
    assert {ends[name] for name in views[:5]} == {"linear"}
    assert {ends[name] for name in views[5:]} == {"scaled_dot_product_attention"}
    assert (anchor[anchor] == anchor).all()
    part_of = partition_metis(build_block_graph(found), 2, seed=0)
    assert all(part_of[i] == part_of[h] for i, h in enumerate(anchor.tolist()))


class Folded(nn.Module):
    """Two products, the second cut where it is summed over, and a view between it and its reader."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.down(torch.relu(self.up(x))).reshape(2, 3, 8))


def test_a_view_of_a_sum_is_cut_as_what_reads_it() -> None:
    graph, _ = capture(Folded(), lambda y: y.mean(), [torch.zeros(2, 3, 8)])
    hidden = graph.tensors["linear"].axes[2][0]
    found = split_into_blocks(graph, CutAxes("hidden", frozenset({hidden}), 2, reductions=True))
    view = next(op for op in graph.ops if "reshape" in op.target or "view" in op.target)
    assert found.grids[view.name].count == found.grids["layer_norm"].count == 2
    anchor = build_block_graph(found).anchor
    first = found.first[view.name]
    assert anchor[first : first + 2].tolist() == [found.first["layer_norm"], found.first["layer_norm"] + 1]


def test_a_view_of_an_input_stays_with_what_reads_it() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 6))
    graph, _ = capture(model, lambda y: y.mean(), [torch.zeros(4, 3, 4)])
    found = split_into_blocks(graph, CutAxes("layers", frozenset(), 1))
    anchor = build_block_graph(found).anchor
    assert anchor[found.first["flatten"]] == found.first["linear"]


def test_huge_weights_are_added_up_without_overflow() -> None:
    graph = chain(8, 6, 5)
    ops = tuple(msgspec.structs.replace(op, nest=msgspec.structs.replace(op.nest, work=2.0**62)) for op in graph.ops)
    found = split_into_blocks(msgspec.structs.replace(graph, ops=ops), CutAxes("units", unit_axes(graph), 2))
    assert found.flops.sum() == sum(op.flops for op in ops) > 2.0**63
    assert np.isfinite(build_block_graph(found).bytes).all()
    assert set(partition_metis(build_block_graph(found), 3, seed=0)) == {0, 1, 2}
