"""`cutset bench figure3`: table, JSON and picture."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from cutset.errors import UsageError
from cutset.tools.bench.planner.figure3_command import figure3_command, summary
from cutset.tools.bench.planner.figure3_picture import figure3_svg
from cutset.tools.bench.planner.figure3 import Assumed, Figure, Point
from cutset.tools.figures.svg import text_width

SVG = "{http://www.w3.org/2000/svg}"
MACHINES = ("--flops", "1e8", "--message", "1e-5", "--draws", "2")
SMALL = ("--net", "digits", "--net", "digits_local", "--machines", "2,1", *MACHINES)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(figure3_command, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def point(task: str, machines: int, speedup: float) -> Point:
    return Point(task, machines, 1 / speedup, 0.9 / speedup, speedup, "slices", 1000, 0.9)


@pytest.fixture
def made() -> Figure:
    speech = [point("speech", k, s) for k, s in ((1, 1.0), (8, 2.3), (128, 1.2))]
    images = [point("local_1700m", k, s) for k, s in ((1, 1.0), (81, 13.0), (128, 17.0))]
    return Figure(Assumed(), 100, (*speech, *images), 60.0)


def test_the_table_has_the_machines_the_speedups_and_the_plans() -> None:
    result = run(*SMALL)
    assert result.exit_code == 0
    out = result.stdout
    assert "Machines: 100 MFLOP/s, 64 GiB of memory, 20 GB/s to it." in out
    assert "110 MB/s each way, latency 200 µs, 10 µs a message" in out
    assert "the mean of 2 steps or more.\nSlowdown of a machine in a step: lognormal, sigma 0.5, seed 0." in out
    assert out.count(" one machine ") == 2
    assert "digits: fastest on" in out
    assert "digits_local, machines 2" in result.stderr


def test_json_is_the_whole_result() -> None:
    digits = ("--net", "digits", "--machines", "2,1,2", "--json", *MACHINES)
    data, again = json.loads(run(*digits).stdout), json.loads(run(*digits).stdout)
    assert [(p["task"], p["machines"]) for p in data["points"]] == [("digits", 1), ("digits", 2)]
    assert data["assumed"]["message_s"] == 1e-5
    assert again["points"] == data["points"]


def test_the_kind_of_plans_can_be_chosen() -> None:
    data = json.loads(run("--net", "digits", "--machines", "1,3", "--only", "slices", "--json", *MACHINES).stdout)
    assert [p["plan"] for p in data["points"]] == ["one machine", "slices"]


def test_the_picture_is_written_beside_json(tmp_path: Path) -> None:
    file = tmp_path / "out.svg"
    result = run(*SMALL, "--json", "--svg", str(file))
    assert json.loads(result.stdout)["points"]
    root = ElementTree.parse(file).getroot()
    assert len(root.findall(f".//{SVG}circle")) == 4


def test_the_picture_has_a_line_a_net_and_the_papers_words(made: Figure) -> None:
    root = ElementTree.fromstring(figure3_svg(made))
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


def test_higher_is_faster_and_everything_is_in_the_frame(made: Figure) -> None:
    root = ElementTree.fromstring(figure3_svg(made))
    spots = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter(f"{SVG}circle")]
    speeds = [p.speedup for p in made.points]
    by_speed = [y for _, (_, y) in sorted(zip(speeds, spots, strict=True))]
    assert by_speed == sorted(by_speed, reverse=True)
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    assert all(0 < x < width and 0 < y < height for x, y in spots)
    lines = [(float(t.get("x", "")), t.text or "") for t in root.iter(f"{SVG}text") if "end" not in t.get("class", "")]
    assert all(x + text_width(text, 11) < width for x, text in lines)


def test_the_summary_says_where_it_is_fastest(made: Figure) -> None:
    assert (
        summary(made.of("speech")) == "speech: fastest on 8 machines, 2.30 times as fast as on one, 1.20 times on 128."
    )
    assert summary(made.of("local_1700m")).endswith("fastest on 128 machines, 17.00 times as fast as on one.")


@pytest.mark.parametrize("counts", ["0", "1,x", "1,,2", "", "5000", "-1"])
def test_wrong_lists_of_machines_are_refused(counts: str) -> None:
    with pytest.raises(UsageError, match="E241"):
        run("--net", "digits", "--machines", counts)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="E222"):
        run("--net", "digits", "--machines", "1", "--svg", str(tmp_path / "none" / "out.svg"))
