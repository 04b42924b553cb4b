"""DistBelief's figure 3 as a picture, and its summary."""

from xml.etree import ElementTree

import pytest

from cutset.tools.bench.planner.figure3 import AssumedMachines, Figure3, SpeedupPoint, summarise
from cutset.tools.bench.planner.figure3_svg import render_figure3
from cutset.tools.figures.svg import measure_text

SVG = "{http://www.w3.org/2000/svg}"


def point(task: str, machines: int, speedup: float) -> SpeedupPoint:
    return SpeedupPoint(task, machines, 1 / speedup, 0.9 / speedup, speedup, "slices", 1000, 0.9)


@pytest.fixture
def made() -> Figure3:
    speech = [point("speech", k, s) for k, s in ((1, 1.0), (8, 2.3), (128, 1.2))]
    images = [point("local_1700m", k, s) for k, s in ((1, 1.0), (81, 13.0), (128, 17.0))]
    return Figure3(AssumedMachines(), 100, (*speech, *images), 60.0)


def test_the_picture_has_a_line_a_net_and_the_papers_words(made: Figure3) -> None:
    root = ElementTree.fromstring(render_figure3(made))
    nets = [g for g in root.iter(f"{SVG}g") if "data-net" in g.attrib]
    assert [g.get("data-net") for g in nets] == ["speech", "local_1700m"]
    stated = {
        g.get("data-stated"): g.findtext(f"{SVG}title") for g in root.iter(f"{SVG}g") if "data-stated" in g.attrib
    }
    assert stated["speech"] == "the paper: speech 2.2 times as fast on 8 machines"
    assert stated["local_1700m"] == "the paper: local_1700m more than 12 times as fast on 81 machines"
    words = "".join(root.itertext())
    assert "60 GFLOP/s" in words
    assert "2.30 on 8" in words


def test_higher_is_faster_and_everything_is_in_the_frame(made: Figure3) -> None:
    root = ElementTree.fromstring(render_figure3(made))
    spots = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter(f"{SVG}circle")]
    speeds = [p.speedup for p in made.points]
    by_speed = [y for _, (_, y) in sorted(zip(speeds, spots, strict=True))]
    assert by_speed == sorted(by_speed, reverse=True)
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    assert all(0 < x < width and 0 < y < height for x, y in spots)
    lines = [(float(t.get("x", "")), t.text or "") for t in root.iter(f"{SVG}text") if "end" not in t.get("class", "")]
    assert all(x + measure_text(text, 11) < width for x, text in lines)


def test_the_summary_says_where_it_is_fastest(made: Figure3) -> None:
    assert (
        summarise(made.select("speech"))
        == "speech: fastest on 8 machines, 2.30 times as fast as on one, 1.20 times on 128."
    )
    assert summarise(made.select("local_1700m")).endswith("fastest on 128 machines, 17.00 times as fast as on one.")
