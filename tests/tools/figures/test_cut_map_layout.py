"""The layout of the cut map: boxes keep apart, edges run level and upright, and areas are parts of the work."""

from itertools import combinations, pairwise
from math import prod

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutset.partition.placement.placement_file import BoxPlacement, Loop, OpPlacement, Placement
from cutset.tools.figures.cut_map_fusing import fuse_light_operators
from cutset.tools.figures.cut_map_layout import ROOMY, choose_scale, group_by_depth, place_nodes
from cutset.tools.figures.cut_map_legend import learn_axis_names
from cutset.tools.figures.cut_map_node import compute_fractions, divide_frame
from cutset.tools.figures.cut_map_routing import route_edges


def test_light_operators_join_the_one_they_follow(tiles: Placement) -> None:
    groups = [[op.name for op in node.ops] for node in fuse_light_operators(tiles)]
    assert groups[0] == ["local0.filter", "local0.relu", "local0.dropout"]
    assert ["head.flatten"] in groups, "bytes cross in front of it"
    assert [name for group in groups for name in group] == [op.name for op in tiles.ops]


@pytest.mark.parametrize("narrow", [False, True])
def test_boxes_keep_apart_and_inside(placement: Placement, narrow: bool) -> None:
    nodes = fuse_light_operators(placement)
    columns = group_by_depth(nodes)
    heaviest = max(op.flops for op in placement.ops)
    scale = choose_scale(nodes, columns, heaviest, narrow=narrow)
    seats, rows = place_nodes(nodes, columns, scale, heaviest)
    routes = route_edges(nodes, seats, rows, scale)
    frames = [
        (s.x, s.y + routes.tops[s.row], s.x + s.width, s.y + routes.tops[s.row] + s.height) for s in seats.values()
    ]
    assert len(frames) == len(nodes)
    for a, b in combinations(frames, 2):
        assert a[2] < b[0] or b[2] < a[0] or a[3] < b[1] or b[3] < a[1], f"{a} and {b} overlap"
    assert all(
        left >= 0 and right <= scale.width and top >= 0 and bottom <= routes.height
        for left, top, right, bottom in frames
    )


def test_every_edge_runs_straight_on_or_level_and_upright(placement: Placement) -> None:
    nodes = fuse_light_operators(placement)
    columns = group_by_depth(nodes)
    seats, rows = place_nodes(nodes, columns, ROOMY, 1.0)
    routes = route_edges(nodes, seats, rows, ROOMY)
    assert set(routes.paths) == {(s, t) for t, node in enumerate(nodes) for s in node.inputs}
    for (source, target), points in routes.paths.items():
        if points is None:
            assert (seats[source].row, seats[source].column + 1) == (seats[target].row, seats[target].column)
            continue
        assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(points))
        assert points[0][0] == seats[source].x + seats[source].width
        assert points[-1][0] == seats[target].x
        assert all(0 < x < ROOMY.width for x, _ in points)


def boxes_of(splits: list[tuple[int, float, int]], sizes: list[int]) -> list[BoxPlacement]:
    """Boxes made by cutting the largest box again and again: (loop, where, machine of the second half)."""
    pieces = [BoxPlacement([(0, size) for size in sizes], 0)]
    for loop, where, machine in splits:
        i = max(range(len(pieces)), key=lambda i: prod(b - a for a, b in pieces[i].box))
        start, stop = pieces[i].box[loop % len(sizes)]
        middle = start + max(1, int((stop - start) * where))
        if middle >= stop:
            continue
        first, second = list(pieces[i].box), list(pieces[i].box)
        first[loop % len(sizes)], second[loop % len(sizes)] = (start, middle), (middle, stop)
        pieces[i : i + 1] = [BoxPlacement(first, pieces[i].machine), BoxPlacement(second, machine)]
    return pieces


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0.1, 0.9), st.integers(0, 4)), max_size=12),
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
)
def test_territory_has_the_area_of_each_machines_work(splits: list[tuple[int, float, int]], sizes: list[int]) -> None:
    nest = [Loop(f"axis{i}", size, "parallel") for i, size in enumerate(sizes)]
    op = OpPlacement("op", "aten.add.Tensor", "", [], 1.0, nest, boxes_of(splits, sizes))
    frame = (10.0, 20.0, 80.0, 60.0)
    land = divide_frame(op, frame)
    assert list(land) == list(compute_fractions(op))
    for machine, part in compute_fractions(op).items():
        assert sum(w * h for _, _, w, h in land[machine]) == pytest.approx(part * 80 * 60)
    for a, b in combinations([rect for rects in land.values() for rect in rects], 2):
        wide = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
        high = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
        assert wide < 1e-6 or high < 1e-6


def test_an_image_is_tiled_as_it_is_cut(tiles: Placement) -> None:
    land = divide_frame(tiles.ops[0], (0.0, 0.0, 100.0, 100.0))
    assert land == {0: [(0, 0, 50, 50)], 1: [(50, 0, 50, 50)], 2: [(0, 50, 50, 50)], 3: [(50, 50, 50, 50)]}


def test_axes_get_names_a_reader_knows(tiles: Placement) -> None:
    loops = [Loop(axis, size, "parallel") for axis, size in (("in.0", 32), ("w.0", 8), ("w.1", 6), ("w.2", 6))]
    local = OpPlacement("a", "cutset.local2d.default", "", [], 1.0, loops, [BoxPlacement([(0, 1)] * 4, 0)])
    relu = msgspec.structs.replace(local, name="b", op="aten.relu.default")
    names = learn_axis_names(msgspec.structs.replace(tiles, ops=[relu, local]))
    assert names.describe_loops(relu, [2, 3]) == "rows × columns"
    assert names["unknown"] == "unknown"
