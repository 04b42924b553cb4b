"""Every layout on every mesh gives boxes that cover the loops exactly once."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from example_graphs import chain, conv_line
from hypothesis import given
from hypothesis import strategies as st

from cutset.partition.dataflow.cut import Cut, boxes_overlap, check_cut
from cutset.partition.ir.box import Box, volume
from cutset.partition.ir.graph import Graph, LoopInfo
from cutset.partition.layouts.device_mesh import DeviceMesh, enumerate_layouts, placed_boxes, reduce_scatter_layout

KINDS = ("parallel", "reduction", "fixed")


@st.composite
def meshes(draw: st.DrawFn) -> DeviceMesh:
    """One or two dimensions, unlike machines, in any order, and some machines of the cluster that are not in it."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    count = math.prod(shape)
    total = count + draw(st.integers(0, 2))
    machines = draw(st.permutations(range(total)))[:count]
    speeds = draw(st.lists(st.floats(1e-3, 1e3), min_size=count, max_size=count))
    return DeviceMesh(shape, tuple(machines), tuple(speeds), total)


@st.composite
def loop_nests(draw: st.DrawFn) -> list[LoopInfo]:
    drawn = draw(st.lists(st.tuples(st.integers(1, 40), st.sampled_from(KINDS)), min_size=0, max_size=3))
    parallel_first = sorted(drawn, key=lambda loop: loop[1] == "reduction")
    return [LoopInfo(i, size, kind) for i, (size, kind) in enumerate(parallel_first)]


def assert_covers(boxes: Sequence[Box], sizes: Sequence[int]) -> None:
    assert all(0 <= a < b <= size for box in boxes for (a, b), size in zip(box, sizes, strict=True))
    assert sum(volume(box) for box in boxes) == math.prod(sizes)
    assert not boxes_overlap(boxes)


@given(meshes(), loop_nests())
def test_boxes_cover_the_loops_exactly_once(mesh: DeviceMesh, loops: list[LoopInfo]) -> None:
    sizes = [loop.size for loop in loops]
    for layout in enumerate_layouts(loops, mesh.shape):
        intervals = mesh.boxes(sizes, layout)
        assert intervals.shape == (mesh.total, len(sizes), 2)
        if not sizes:
            continue
        placed = placed_boxes(intervals)
        assert {machine for _, machine in placed} == set(mesh.machines if layout else mesh.machines[:1])
        assert_covers([box for box, _ in placed], sizes)
        for i, loop in enumerate(loops):
            assert loop.kind != "fixed" or all(box[i] == (0, loop.size) for box, _ in placed)


@given(meshes(), loop_nests())
def test_owners_of_sums_cover_the_output_exactly_once(mesh: DeviceMesh, loops: list[LoopInfo]) -> None:
    sizes = [loop.size for loop in loops]
    parallel = [i for i, loop in enumerate(loops) if loop.kind == "parallel" and loop.size > 1]
    summed = [i for i, loop in enumerate(loops) if loop.kind == "reduction"]
    output = [loop.size for loop in loops if loop.kind != "reduction"]
    for layout in enumerate_layouts(loops, mesh.shape):
        owners = reduce_scatter_layout(mesh, sizes, layout, parallel=parallel, summed=summed)
        assert not any(loop in summed for _, loop in owners)
        if output:
            assert_covers([box for box, _ in placed_boxes(mesh.boxes(output, owners))], output)


@given(st.integers(1, 6), st.integers(6, 100))
def test_machines_that_are_alike_get_parts_that_differ_by_one_at_most(count: int, size: int) -> None:
    lengths = np.diff(DeviceMesh((count,), tuple(range(count)), (1e9,) * count, count).boxes([size], ((0, 0),)))
    assert lengths.max() - lengths.min() <= 1


@given(st.lists(st.floats(1, 10), min_size=4, max_size=4))
def test_parts_follow_the_speeds(speeds: list[float]) -> None:
    """Rows first, by their machines together; then each row by its own machines."""
    size = 10_000
    mesh = DeviceMesh((2, 2), (0, 1, 2, 3), tuple(speeds), 4)
    rows, columns = np.diff(mesh.boxes([size, size], ((0, 0), (1, 1))))[..., 0].T
    shares = rows * columns / size**2
    np.testing.assert_allclose(shares, np.array(speeds) / sum(speeds), atol=2.5 / size)
    nested = np.diff(mesh.boxes([size], ((1, 0), (0, 0))))[:, 0, 0] / size
    np.testing.assert_allclose(nested, np.array(speeds) / sum(speeds), atol=2.5 / size)


def test_a_slow_row_keeps_enough_for_its_machines() -> None:
    """Four points for a 2 x 2 mesh whose first row is a hundred times slower: a point each all the same."""
    mesh = DeviceMesh((2, 2), (0, 1, 2, 3), (1.0, 1.0, 100.0, 100.0), 4)
    assert placed_boxes(mesh.boxes([4], ((0, 0), (1, 0)))) == [(((i, i + 1),), i) for i in range(4)]


def loop(size: int, kind: str = "parallel") -> LoopInfo:
    return LoopInfo(0, size, kind)


def test_layouts_are_all_ways_to_cut_loops_that_are_long_enough() -> None:
    nest = [loop(8), loop(3), loop(16, "reduction"), loop(9, "fixed")]
    assert enumerate_layouts(nest, (4,)) == [((0, 0),), ((0, 2),)]
    assert enumerate_layouts(nest, (2, 4)) == [
        *[((0, 0), (1, 0)), ((1, 0), (0, 0)), ((0, 0), (1, 2))],
        *[((0, 1), (1, 0)), ((0, 1), (1, 2))],
        *[((0, 2), (1, 0)), ((0, 2), (1, 2)), ((1, 2), (0, 2))],
    ]


def test_where_nothing_can_be_cut_one_machine_does_it_all() -> None:
    assert enumerate_layouts([loop(3), loop(9, "fixed")], (4,)) == [()]
    assert enumerate_layouts([], (2, 2)) == [()]
    mesh = DeviceMesh((2,), (3, 1), (1.0, 1.0), 4)
    assert placed_boxes(mesh.boxes([3, 9], ())) == [(((0, 3), (0, 9)), 3)]


def test_owners_of_a_sum_cut_the_widest_output_loop_instead() -> None:
    mesh = DeviceMesh((2, 4), tuple(range(8)), (1.0,) * 8, 8)
    layout = ((0, 0), (1, 2))
    assert reduce_scatter_layout(mesh, [8, 16, 32], layout, parallel=[0, 1], summed=[2]) == ((0, 0), (1, 1))
    assert reduce_scatter_layout(mesh, [8, 3, 32], layout, parallel=[0, 1], summed=[2]) == ((0, 0), (1, 0))
    assert reduce_scatter_layout(mesh, [4, 3, 32], layout, parallel=[0, 1], summed=[2]) == (), (
        "nowhere is room: one machine owns it"
    )


@pytest.mark.parametrize("graph", [chain(16, 12, 8), conv_line(16, batch=4)], ids=["chain", "conv"])
@pytest.mark.parametrize("shape", [(2,), (3,), (2, 2), (2, 3)])
def test_every_layout_of_every_operator_is_a_legal_cut(graph: Graph, shape: tuple[int, ...]) -> None:
    count = math.prod(shape)
    mesh = DeviceMesh(shape, tuple(range(count)), tuple(1.0 + i for i in range(count)), count)
    whole = {op.name: [(op.nest.box, 0)] for op in graph.ops}
    for op in graph.ops:
        for layout in enumerate_layouts(op.nest.loops, shape):
            boxes = placed_boxes(mesh.boxes([loop.size for loop in op.nest.loops], layout))
            check_cut(graph, Cut(count, {**whole, op.name: boxes}))
