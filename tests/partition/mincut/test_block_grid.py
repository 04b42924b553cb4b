"""Which blocks meet which boxes of a tensor, found axis by axis, against every pair of boxes."""

from collections import defaultdict

import numpy as np
import pytest
from example_graphs import chain, conv_line, mlp_block
from weighted_graphs import transformer

from cutset.errors import Infeasible
from cutset.partition.ir.box import intersect, volume
from cutset.partition.ir.graph import Graph, output_box, read_box
from cutset.partition.mincut.block_grid import MAX_BLOCKS, MAX_READS, BlockGrid, check_graph_size, refine_intervals
from cutset.partition.mincut.blocks import Blocks, split_into_blocks
from cutset.partition.mincut.cut_axes import CutAxes, paired_axes, spatial_axes, unit_axes

GRAPHS = {
    "chain": lambda: chain(8, 9, 10),
    "convolutions": lambda: conv_line(13, batch=2),
    "residual": lambda: mlp_block(8, 4, 16),
    "transformer": lambda: transformer(1, width=16, heads=4, tokens=6, batch=2),
}


@pytest.fixture(scope="module", params=GRAPHS)
def graph(request: pytest.FixtureRequest) -> Graph:
    return GRAPHS[request.param]()


def cuts(graph: Graph) -> list[CutAxes]:
    everything = frozenset(range(len(graph.axes)))
    return [
        CutAxes("units", unit_axes(graph), 3),
        CutAxes("pairs", paired_axes(graph), 4, reductions=True),
        CutAxes("space", spatial_axes(graph), 5),
        CutAxes("all", everything, 2, reductions=True),
    ]


def by_pairs(found: Blocks) -> dict[tuple[str, str, int, int], int]:
    """(tensor, reading operator, block of the maker, block of the reader): points, over all pairs of boxes."""
    out: dict[tuple[str, str, int, int], int] = defaultdict(int)
    boxes = {name: list(grid.boxes()) for name, grid in found.grids.items()}
    for name, readers in found.readers.items():
        info = found.graph.tensors[name]
        for op, operand in readers if info.kind == "value" else []:
            maker = found.producers[name]
            for j, reading in enumerate(boxes[op.name]):
                region = read_box(op.nest, operand, reading, info.extents)
                for i, making in enumerate(boxes[maker.name]):
                    common = None if region is None else intersect(output_box(maker, info, making), region)
                    if common is not None:
                        out[name, op.name, i, j] += volume(common)
    return dict(out)


def by_axes(found: Blocks) -> dict[tuple[str, str, int, int], int]:
    out: dict[tuple[str, str, int, int], int] = defaultdict(int)
    for name, readers in found.readers.items():
        info = found.graph.tensors[name]
        for op, operand in readers if info.kind == "value" else []:
            made, parts = found.find_makers(info)
            met = found.find_reads(op, operand, made)
            for cell, block, points in zip(met.cells.tolist(), met.blocks.tolist(), met.points.tolist(), strict=True):
                for part in range(parts):
                    out[name, op.name, cell * parts + part, block - found.first[op.name]] += points
    return dict(out)


@pytest.mark.parametrize("which", range(4))
def test_meetings_are_those_of_all_pairs_of_boxes(graph: Graph, which: int) -> None:
    found = split_into_blocks(graph, cuts(graph)[which])
    assert by_axes(found) == by_pairs(found)


def test_boxes_and_volumes_are_in_one_order() -> None:
    grid = BlockGrid.of([[(0, 2), (2, 5)], [(0, 1), (1, 4)]])
    assert [volume(box) for box in grid.boxes()] == grid.volumes.tolist() == [2, 6, 3, 9]
    assert grid.count == 4


def test_a_scalar_has_one_box() -> None:
    assert list(BlockGrid.of([]).boxes()) == [()]
    assert BlockGrid.of([]).volumes.tolist() == [1]


def test_refined_intervals_have_all_edges() -> None:
    lines = [np.array([[0, 4], [4, 8]]), np.array([[3, 6]])]
    assert refine_intervals(lines).tolist() == [[0, 3], [3, 4], [4, 6], [6, 8]]


@pytest.mark.parametrize(("edges", "count"), [(MAX_READS + 1, 0), (0, MAX_BLOCKS + 1)])
def test_too_much_is_refused(edges: int, count: int) -> None:
    with pytest.raises(Infeasible, match="E405"):
        check_graph_size(edges, blocks=count)
    check_graph_size(MAX_READS, blocks=MAX_BLOCKS)
