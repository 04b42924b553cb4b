"""Pictures: complete, well-formed, true to the placement, the same every time, and legible."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import msgspec
import pytest

from cutset.partition.placement.placement_file import Placement, TimelineSpan, Traffic
from cutset.tools.figures.cut_map import render_cut_map
from cutset.tools.figures.cut_map_edges import assign_received, collect_crossings
from cutset.tools.figures.cut_map_fusing import fuse_light_operators
from cutset.tools.figures.gantt import merge_spans, render_gantt
from cutset.tools.figures.load_and_traffic import render_link_matrix, render_load_bars, render_traffic_matrix
from cutset.tools.task.capture_task import capture_task
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.task.plan_request import PlanRequest
from cutset.tools.task.plan_task import plan_task
from cutset.tools.units import format_bytes

FIGURES = (render_cut_map, render_traffic_matrix, render_load_bars, render_gantt)


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
        assert root.get("role") == "group", "the parts of a picture are reached, too"
        assert root.get("aria-labelledby") == title.get("id")
        assert root.get("aria-describedby") == description.get("id")
        assert any(element.tag.endswith("style") for element in root.iter()) is standalone


def test_the_cut_map_shows_every_operator_machine_and_crossing(placement: Placement) -> None:
    svg = render_cut_map(placement)
    names = {op.name for op in placement.ops}
    crossing = {item.tensor for item in placement.predicted.traffic}
    shown = texts(svg)
    assert sorted(data(svg, "op")) == sorted(names)
    assert data(svg, "machine") == [machine.name for machine in placement.machines]
    assert sorted(data(svg, "sends")) == sorted(crossing & names)
    for tensor in crossing:
        total = sum(item.bytes for item in placement.predicted.traffic if item.tensor == tensor)
        assert f"{tensor} crosses: {format_bytes(total)} forward" in shown
    if parameters := crossing - names:
        assert f"{format_bytes(4096 * len(parameters))} are parameters, shown where they are received" in shown


@pytest.mark.run
def test_all_bytes_that_cross_are_in_the_picture() -> None:
    """Those of operators' outputs, and those of parameters, at the operators that read them."""
    spec = TaskSpec("cutset.models:transformer(layers=1,width=32,heads=2)")
    placement = plan_task(capture_task(spec), spec, PlanRequest(machines=3)).placement
    crossed = collect_crossings(placement)
    received = assign_received(fuse_light_operators(placement), crossed)
    parameters = [item for items in received.values() for item in items]
    names = {op.name for op in placement.ops}
    assert {item.tensor for item in parameters} == set(crossed) - names
    assert parameters
    total = sum(item.total for item in parameters) + sum(crossed[name].total for name in set(crossed) & names)
    assert total == placement.predicted.bytes_forward
    for position, items in received.items():
        read = {name for op in fuse_light_operators(placement)[position].ops for name in op.reads}
        assert {item.tensor for item in items} <= read
    root = ElementTree.fromstring(render_cut_map(placement))
    assert len([one for one in root.iter() if one.get("class") == "item receives"]) == len(received)


def test_the_cut_map_colours_only_machines_that_hold_a_part(tiles: Placement) -> None:
    root = ElementTree.fromstring(render_cut_map(tiles))
    for op in tiles.ops:
        group = next(e for e in root.iter() if e.get("data-op") == op.name)
        classes = {(path.get("class") or "").split()[0] for path in group if path.tag.endswith("path")}
        assert classes == {f"f{piece.machine}" for piece in op.boxes}


def test_pictures_are_the_same_in_every_process(branches: Placement, tmp_path: object) -> None:
    path = f"{tmp_path}/placement.json"
    branches.save(path)
    code = (
        "import sys; from cutset.partition.placement.placement_file import load;"
        "from cutset.tools.report.pages import render_placement_page;"
        "sys.stdout.buffer.write(render_placement_page(load(sys.argv[1])).encode())"
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
    assert "No tensor crosses" in render_cut_map(empty)
    assert render_gantt(empty) == ""
    ElementTree.fromstring(render_traffic_matrix(empty))


def test_the_traffic_matrix_adds_up(tiles: Placement) -> None:
    shown = texts(render_traffic_matrix(tiles))
    sent = sum(item.bytes for item in tiles.predicted.traffic if item.source == 1)
    pair = sum(item.bytes for item in tiles.predicted.traffic if (item.source, item.target) == (1, 0))
    assert f"machine-1 → machine-0: {format_bytes(pair)}" in shown
    assert format_bytes(sent) in shown.split("\n")
    assert format_bytes(sum(item.bytes for item in tiles.predicted.traffic)) in shown.split("\n")


def test_measured_links_are_drawn_for_all_processes() -> None:
    links = [{"source": "worker-<0>", "target": "shard-0", "bytes": 2048, "messages": 3}]
    shown = texts(render_link_matrix([*links, *links]))
    assert "worker-<0> → shard-0: 4 KiB" in shown


def test_memory_over_the_limit_is_said_in_words(mlp: Placement) -> None:
    assert "over" not in texts(render_load_bars(mlp)).split("\n")
    full = [msgspec.structs.replace(machine, memory_used_bytes=9 << 30) for machine in mlp.machines]
    shown = texts(render_load_bars(msgspec.structs.replace(mlp, machines=full))).split("\n")
    assert shown.count("over") == 2
    assert shown.count("9 GiB of 8 GiB") == 2


def test_the_gantt_shows_every_machine_and_kind(placement: Placement) -> None:
    svg = render_gantt(placement)
    assert data(svg, "machine") == [machine.name for machine in placement.machines]
    assert all(f"\n{kind} " in texts(svg) for kind in ("forward", "backward", "send"))


def test_narrow_spans_are_joined_and_none_is_lost() -> None:
    spans = [TimelineSpan(0, "forward", str(i), i * 1.0, i + 0.9) for i in range(50)] + [
        TimelineSpan(0, "backward", "b", 50.0, 80.0)
    ]
    bars = merge_spans(spans, 2.0)
    assert [bar.kind for bar in bars] == ["forward", "backward"]
    assert [label for bar in bars for label in bar.labels] == [span.label for span in spans]
    assert (bars[0].start_s, bars[0].stop_s) == (0.0, 49.9)
    assert len(merge_spans(spans, 0.01)) == len(spans)


def test_machines_beyond_eight_are_hatched_each_in_its_colour(transformer: Callable[[int, int], Placement]) -> None:
    svg = render_cut_map(transformer(1, 18))
    root = ElementTree.fromstring(svg)
    patterns = {e.get("id"): e for e in root.iter() if e.tag.endswith("pattern")}
    assert list(patterns) == [f"cut-hatch{machine}" for machine in range(8, 18)]
    assert all(f"url(#{name})" in svg for name in patterns)
    marks = {name: (pattern[0].get("d"), pattern[0].get("class")) for name, pattern in patterns.items()}
    assert marks["cut-hatch8"][0] != marks["cut-hatch16"][0], "the ninth and the seventeenth have other hatches"
    assert len(set(marks.values())) == len(marks)
    assert "hatch" not in render_cut_map(transformer(1, 8)).partition("</style>")[2]
