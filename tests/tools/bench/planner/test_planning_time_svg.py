"""Time to plan as a picture."""

from xml.etree import ElementTree

from cutset.tools.bench.planner.planning_time import PlanningTime
from cutset.tools.bench.planner.planning_time_svg import render_planning_time

SVG = "{http://www.w3.org/2000/svg}"


def row(net: str, operators: int, machines: int, seconds: float) -> PlanningTime:
    return PlanningTime(net, operators, machines, 0.5, seconds, 1 << 30, "mesh 2x2", 1.0)


def test_longer_is_higher_more_machines_are_further_right_and_all_is_in_the_frame() -> None:
    rows = [
        row("small", 50, 4, 1.5),
        row("small", 50, 64, 12.0),
        row("deep", 1600, 4, 8.0),
        row("deep", 1600, 64, 90.0),
    ]
    root = ElementTree.fromstring(render_planning_time(rows))
    nets = [g.get("data-net") for g in root.iter(f"{SVG}g") if "data-net" in g.attrib]
    assert nets == ["small", "deep"]
    spots = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter(f"{SVG}circle")]
    by_time = [y for _, (_, y) in sorted(zip([r.cpu_s for r in rows], spots, strict=True))]
    assert by_time == sorted(by_time, reverse=True)
    assert spots[0][0] < spots[1][0]
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    assert all(0 < x < width and 0 < y < height for x, y in spots)
    words = "".join(root.itertext())
    assert "deep: 1600 operators" in words
    assert "deep on 64 machines: 90 s." in words


def test_one_plan_is_a_picture_too() -> None:
    assert "small: 50 operators" in render_planning_time([row("small", 50, 4, 1.5)])
