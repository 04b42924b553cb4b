"""Pictures: complete, well-formed, true to the placement, the same every time, and legible."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from itertools import combinations, pairwise
from math import prod

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutset.partition.placement import Loop, OpPlacement, Piece, Placement, Span, Traffic
from cutset.tools import picture
from cutset.tools.axisname import learn
from cutset.tools.cutlayout import ROOMY, WIDTH, choose_scale, fuse, layers, seat
from cutset.tools.cutmap import cut_map
from cutset.tools.cutroute import route
from cutset.tools.gantt import gantt, merge
from cutset.tools.style import _DARK, _LIGHT, _MACHINES
from cutset.tools.svg import fit, fit_end, number, tag, text_width
from cutset.tools.territory import shares, territory
from cutset.tools.units import bytes_text, count_text, percent_text, seconds_text, ticks

FIGURES = (picture.cut_map, picture.traffic_matrix, picture.load_bars, picture.gantt)
EXAMPLES = ("mlp", "tiles", "branches", "transformer", "wide")


@pytest.fixture(params=EXAMPLES)
def placement(request: pytest.FixtureRequest) -> Placement:
    if request.param == "transformer":
        return request.getfixturevalue("transformer")(4, 4)
    if request.param == "wide":
        return request.getfixturevalue("transformer")(20, 18)
    return request.getfixturevalue(request.param)


def data(svg: str, name: str) -> list[str]:
    """All values of a data attribute, unescaped."""
    values = (element.get(f"data-{name}") for element in ElementTree.fromstring(svg).iter())
    return [value for value in values if value is not None]


def texts(svg: str) -> str:
    return "\n".join(element.text or "" for element in ElementTree.fromstring(svg).iter())


@pytest.mark.parametrize("draw", FIGURES)
def test_a_figure_is_well_formed_and_says_what_it_shows(placement: Placement, draw: Callable[..., str]) -> None:
    for standalone in (True, False):
        root = ElementTree.fromstring(draw(placement, standalone=standalone))
        title, description = root[0], root[1]
        assert title.tag.endswith("title")
        assert title.text
        assert description.tag.endswith("desc")
        assert description.text
        assert root.get("role") == "img"
        assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
        assert any(element.tag.endswith("style") for element in root.iter()) is standalone


def test_the_cut_map_shows_every_operator_machine_and_crossing(placement: Placement) -> None:
    svg = cut_map(placement)
    names = {op.name for op in placement.ops}
    crossing = {item.tensor for item in placement.predicted.traffic}
    assert sorted(data(svg, "op")) == sorted(names)
    assert data(svg, "machine") == [machine.name for machine in placement.machines]
    assert sorted(data(svg, "sends")) == sorted(crossing & names)
    for tensor in crossing:
        total = sum(item.bytes for item in placement.predicted.traffic if item.tensor == tensor)
        assert f"{tensor} crosses: {bytes_text(total)} forward" in texts(svg)
    for tensor in crossing - names:
        assert f"{tensor} {bytes_text(4096)}" in texts(svg)


def test_the_cut_map_colours_only_machines_that_hold_a_part(tiles: Placement) -> None:
    root = ElementTree.fromstring(cut_map(tiles))
    for op in tiles.ops:
        group = next(e for e in root.iter() if e.get("data-op") == op.name)
        classes = {(path.get("class") or "").split()[0] for path in group if path.tag.endswith("path")}
        assert classes == {f"f{piece.machine}" for piece in op.boxes}


def test_pictures_are_the_same_in_every_process(branches: Placement, tmp_path: object) -> None:
    path = f"{tmp_path}/placement.json"
    branches.save(path)
    code = (
        "import sys; from cutset.partition.placement import load; from cutset.tools import report;"
        "sys.stdout.buffer.write(report.placement_page(load(sys.argv[1])).encode())"
    )
    pages = [
        subprocess.run(
            [sys.executable, "-c", code, path],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    ]
    assert pages[0] == pages[1]
    assert b"</html>" in pages[0]


@pytest.mark.parametrize("draw", FIGURES)
def test_text_is_escaped(mlp: Placement, draw: Callable[..., str]) -> None:
    nasty = '<script>alert("1")</script>&\'x'
    machines = [msgspec.structs.replace(machine, name=nasty) for machine in mlp.machines]
    first = msgspec.structs.replace(mlp.ops[0], name=nasty, op=nasty, module=nasty)
    second = msgspec.structs.replace(mlp.ops[1], inputs=[nasty])
    spans = [msgspec.structs.replace(span, label=nasty) for span in mlp.predicted.timeline]
    predicted = msgspec.structs.replace(mlp.predicted, timeline=spans, traffic=[Traffic(nasty, 0, 1, 9)])
    svg = draw(
        msgspec.structs.replace(
            mlp, model=nasty, machines=machines, ops=[first, second, *mlp.ops[2:]], predicted=predicted
        )
    )
    root = ElementTree.fromstring(svg)
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert nasty in texts(svg)


def test_an_empty_placement_is_drawn(mlp: Placement) -> None:
    predicted = msgspec.structs.replace(mlp.predicted, traffic=[], timeline=[])
    empty = msgspec.structs.replace(mlp, ops=[], predicted=predicted)
    assert "No tensor crosses" in cut_map(empty)
    assert gantt(empty) == ""
    ElementTree.fromstring(picture.traffic_matrix(empty))


# Layout


def test_light_operators_join_the_one_they_follow(tiles: Placement) -> None:
    groups = [[op.name for op in node.ops] for node in fuse(tiles)]
    assert groups[0] == ["local0.filter", "local0.relu", "local0.dropout"]
    assert ["head.flatten"] in groups, "bytes cross in front of it"
    assert [name for group in groups for name in group] == [op.name for op in tiles.ops]


def test_boxes_keep_apart_and_inside(placement: Placement) -> None:
    nodes = fuse(placement)
    columns = layers(nodes)
    heaviest = max(op.flops for op in placement.ops)
    scale = choose_scale(nodes, columns, heaviest)
    seats, lines = seat(nodes, columns, scale, heaviest)
    routes = route(nodes, seats, lines, scale)
    frames = [
        (s.x, s.y + routes.tops[s.line], s.x + s.width, s.y + routes.tops[s.line] + s.height) for s in seats.values()
    ]
    assert len(frames) == len(nodes)
    for a, b in combinations(frames, 2):
        assert a[2] < b[0] or b[2] < a[0] or a[3] < b[1] or b[3] < a[1], f"{a} and {b} overlap"
    assert all(
        left >= 0 and right <= WIDTH and top >= 0 and bottom <= routes.height for left, top, right, bottom in frames
    )


def test_every_edge_runs_straight_on_or_level_and_upright(placement: Placement) -> None:
    nodes = fuse(placement)
    columns = layers(nodes)
    seats, lines = seat(nodes, columns, ROOMY, 1.0)
    routes = route(nodes, seats, lines, ROOMY)
    assert set(routes.paths) == {(s, t) for t, node in enumerate(nodes) for s in node.inputs}
    for (source, target), points in routes.paths.items():
        if points is None:
            assert (seats[source].line, seats[source].column + 1) == (seats[target].line, seats[target].column)
            continue
        assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(points))
        assert points[0][0] == seats[source].x + seats[source].width
        assert points[-1][0] == seats[target].x
        assert all(0 < x < WIDTH + ROOMY.gap for x, _ in points)


def test_nothing_overlaps_where_operators_read_only_what_is_before() -> None:
    ops = [
        OpPlacement(
            str(i),
            "aten.add.Tensor",
            "",
            [str(j) for j in range(i)],
            1.0,
            [Loop("a", 4, "parallel")],
            [Piece([(0, 4)], 0)],
        )
        for i in range(12)
    ]
    nodes = fuse_of(ops)
    seats, _ = seat(nodes, layers(nodes), ROOMY, 1.0)
    assert [seats[i].column for i in range(4)] == [0, 1, 2, 3]


def fuse_of(ops: list[OpPlacement]) -> list[object]:
    """Nodes of operators without a placement around them."""
    from types import SimpleNamespace

    return fuse(SimpleNamespace(ops=ops, predicted=SimpleNamespace(traffic=[])))  # type: ignore[arg-type]


# Territory


def boxes_of(splits: list[tuple[int, float, int]], sizes: list[int]) -> list[Piece]:
    """Boxes made by cutting the largest box again and again: (loop, where, machine of the second half)."""
    pieces = [Piece([(0, size) for size in sizes], 0)]
    for loop, where, machine in splits:
        i = max(range(len(pieces)), key=lambda i: prod(b - a for a, b in pieces[i].box))
        start, stop = pieces[i].box[loop % len(sizes)]
        middle = start + max(1, int((stop - start) * where))
        if middle >= stop:
            continue
        first, second = list(pieces[i].box), list(pieces[i].box)
        first[loop % len(sizes)], second[loop % len(sizes)] = (start, middle), (middle, stop)
        pieces[i : i + 1] = [Piece(first, pieces[i].machine), Piece(second, machine)]
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
    land = territory(op, frame)
    assert list(land) == list(shares(op))
    for machine, part in shares(op).items():
        assert sum(w * h for _, _, w, h in land[machine]) == pytest.approx(part * 80 * 60)
    for a, b in combinations([rect for rects in land.values() for rect in rects], 2):
        wide = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
        high = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
        assert wide < 1e-6 or high < 1e-6


def test_an_image_is_tiled_as_it_is_cut(tiles: Placement) -> None:
    land = territory(tiles.ops[0], (0.0, 0.0, 100.0, 100.0))
    assert land == {0: [(0, 0, 50, 50)], 1: [(50, 0, 50, 50)], 2: [(0, 50, 50, 50)], 3: [(50, 50, 50, 50)]}


def test_axes_get_names_a_reader_knows(tiles: Placement) -> None:
    loops = [Loop(axis, size, "parallel") for axis, size in (("in.0", 32), ("w.0", 8), ("w.1", 6), ("w.2", 6))]
    local = OpPlacement("a", "cutset.local2d.default", "", [], 1.0, loops, [Piece([(0, 1)] * 4, 0)])
    relu = msgspec.structs.replace(local, name="b", op="aten.relu.default")
    names = learn(msgspec.structs.replace(tiles, ops=[relu, local]))
    assert names.loops(relu, [2, 3]) == "rows × columns"
    assert names["unknown"] == "unknown"


# Charts


def test_the_traffic_matrix_adds_up(tiles: Placement) -> None:
    shown = texts(picture.traffic_matrix(tiles))
    sent = sum(item.bytes for item in tiles.predicted.traffic if item.source == 1)
    pair = sum(item.bytes for item in tiles.predicted.traffic if (item.source, item.target) == (1, 0))
    assert f"machine-1 → machine-0: {bytes_text(pair)}" in shown
    assert bytes_text(sent) in shown.split("\n")
    assert bytes_text(sum(item.bytes for item in tiles.predicted.traffic)) in shown.split("\n")


def test_measured_links_are_drawn_for_all_processes() -> None:
    links = [{"source": "worker-<0>", "target": "shard-0", "bytes": 2048, "messages": 3}]
    shown = texts(picture.link_matrix([*links, *links]))
    assert "worker-<0> → shard-0: 4 KiB" in shown


def test_memory_over_the_limit_is_said_in_words(mlp: Placement) -> None:
    assert "over" not in texts(picture.load_bars(mlp)).split("\n")
    full = [msgspec.structs.replace(machine, memory_used_bytes=9 << 30) for machine in mlp.machines]
    shown = texts(picture.load_bars(msgspec.structs.replace(mlp, machines=full))).split("\n")
    assert shown.count("over") == 2
    assert shown.count("9 GiB of 8 GiB") == 2


def test_the_gantt_shows_every_machine_and_kind(placement: Placement) -> None:
    svg = gantt(placement)
    assert data(svg, "machine") == [machine.name for machine in placement.machines]
    assert all(f"\n{kind} " in texts(svg) for kind in ("forward", "backward", "send"))


def test_narrow_spans_are_joined_and_none_is_lost() -> None:
    spans = [Span(0, "forward", str(i), i * 1.0, i + 0.9) for i in range(50)] + [Span(0, "backward", "b", 50.0, 80.0)]
    bars = merge(spans, 2.0)
    assert [bar.kind for bar in bars] == ["forward", "backward"]
    assert [label for bar in bars for label in bar.labels] == [span.label for span in spans]
    assert (bars[0].start_s, bars[0].stop_s) == (0.0, 49.9)
    assert len(merge(spans, 0.01)) == len(spans)


# Colours, text and numbers


def channel(value: int) -> float:
    part = value / 255
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def linear(colour: str) -> list[float]:
    digits = colour.lstrip("#")
    digits = digits if len(digits) == 6 else "".join(2 * c for c in digits)
    return [channel(int(digits[i : i + 2], 16)) for i in (0, 2, 4)]


def contrast(a: str, b: str) -> float:
    low, high = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (linear(a), linear(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("variables", "dark"), [(_LIGHT, False), (_DARK, True)])
def test_text_has_contrast(variables: str, dark: bool) -> None:
    colours = dict(entry.split(":") for entry in variables.rstrip(";").split(";"))
    for ground in ("--paper", "--panel"):
        for text in ("--ink", "--muted", "--good", "--bad", "--accent"):
            assert contrast(colours[text], colours[ground]) >= 4.5, f"{text} on {ground}"
    for row in _MACHINES:
        assert contrast(row[dark], row[2 + dark]) >= 4.5, row


# Machado, Oliveira and Fernandes 2009, severity 1: what readers with a colour vision deficiency see, in linear RGB.
VISIONS = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


def oklab(rgb: list[float]) -> tuple[float, float, float]:
    r, g, b = rgb
    cones = (
        0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b,
        0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b,
        0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b,
    )
    l, m, s = (max(cone, 0.0) ** (1 / 3) for cone in cones)
    return (
        0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
        1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
        0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
    )


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("vision", VISIONS)
def test_machine_colours_stay_apart(vision: str, dark: bool) -> None:
    seen = []
    for row in _MACHINES:
        rgb = linear(row[dark])
        seen.append(oklab([sum(w * c for w, c in zip(weights, rgb, strict=True)) for weights in VISIONS[vision]]))
    for (i, a), (j, b) in combinations(enumerate(seen), 2):
        apart = sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5
        assert apart > (0.15 if j < 4 else 0.07), f"machines {i} and {j}"


def test_machines_beyond_the_colours_are_hatched(transformer: Callable[[int, int], Placement]) -> None:
    svg = cut_map(transformer(1, 18))
    assert "url(#cut-hatch0)" in svg
    assert "url(#cut-hatch1)" in svg
    assert 'id="cut-hatch1"' in svg
    assert "hatch0" not in cut_map(transformer(1, 8))


def test_text_is_cut_to_fit() -> None:
    assert fit("short", 100) == "short"
    assert fit("a long line of text", 60).endswith("…")
    assert text_width(fit("a long line of text", 60)) <= 60
    assert fit_end("layers.11.attention", 70, 10).endswith("tention")
    assert fit("anything", 0) == ""


def test_tags_are_escaped_and_numbers_short() -> None:
    assert tag("a", cls='"<', stroke_width=1.5, x=None) == '<a class="&quot;&lt;" stroke-width="1.5"/>'
    assert [number(value) for value in (1.0, 0.1 + 0.2, -0.001, 1e6)] == ["1", "0.3", "0", "1000000"]
    with pytest.raises(ValueError, match="nan"):
        number(float("nan"))


def test_numbers_read_well() -> None:
    assert [bytes_text(n) for n in (0, 640, 1536, 1023, 5 << 30, None)] == [
        "0 B",
        "640 B",
        "1.5 KiB",
        "1 KiB",
        "5 GiB",
        "–",
    ]
    assert [seconds_text(n) for n in (0, 2e-6, 0.00123, 1.5, 300, 7200)] == [
        "0 s",
        "2 µs",
        "1.23 ms",
        "1.5 s",
        "5 min",
        "2 h",
    ]
    assert [count_text(n) for n in (12, 1234567)] == ["12", "1.23 M"]
    assert [percent_text(n) for n in (0, 0.001, 0.256, None)] == ["0 %", "<1 %", "26 %", "–"]
    assert ticks(1.0) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(0) == [0.0]
