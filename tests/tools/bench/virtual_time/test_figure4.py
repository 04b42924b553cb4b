"""Accuracy against time by all methods, on a small net."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from cutset.errors import BadInput, UsageError
from cutset.tools.bench.virtual_time import curve_runs
from cutset.tools.bench.virtual_time.assumptions import Assumptions
from cutset.tools.bench.virtual_time.figure4 import (
    SANDBLASTER,
    Curve,
    Figure4,
    Figure4Request,
    simulate_figure4,
    tabulate,
)
from cutset.tools.bench.virtual_time.figure4_svg import render_figure4
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.virtual_time.results import Point, find_crossing

SVG = "{http://www.w3.org/2000/svg}"
TASK = TaskSpec("cutset.models:digits_local")
NAMES = ("one process, Adagrad", "Downpour Adagrad", SANDBLASTER)


def make_request(**options: object) -> Figure4Request:
    given: dict[str, Any] = {"epochs": 1.0, "some": 4, "batch": 8, "iterations": 3, "names": NAMES}
    return Figure4Request(TASK, Assumptions(), **(given | options))


def make_point(seconds: float, accuracy: float) -> Point:
    return Point(seconds, 0, accuracy, accuracy, 1.0, 1.0)


@pytest.mark.run
def test_a_figure_is_run_once_and_a_part_of_it_again(tmp_path: Path) -> None:
    told = list[str]()
    figure = simulate_figure4(make_request(), tmp_path, jobs=2, tell=told.append)
    assert [curve.name for curve in figure.curves] == list(NAMES)
    one, downpour, batch = figure.curves
    assert downpour.end.seconds < 0.4 * one.end.seconds  # four replicas
    assert (one.end.test_accuracy or 0) > 0.7
    assert batch.replicas == 8
    assert batch.end.samples > 3 * 1437 - 1
    assert len(told) == 3

    again = simulate_figure4(make_request(), tmp_path, jobs=2, tell=told.append)
    assert again.curves == figure.curves
    assert told[3:] == [f"3 of 3 runs are there already, in {tmp_path}"]

    broken = next(tmp_path.glob("run-*.json"))
    broken.write_text(broken.read_text()[:100])  # as a full disk would leave it
    other = simulate_figure4(make_request(), tmp_path, jobs=1, tell=told.append)
    assert [curve.points for curve in other.curves] == [curve.points for curve in figure.curves]
    assert told[4] == f"2 of 3 runs are there already, in {tmp_path}"


@pytest.mark.run
def test_what_is_left_of_a_figure_that_was_stopped_is_run(tmp_path: Path) -> None:
    def stop(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate_figure4(make_request(), tmp_path, jobs=1, tell=stop)
    told = list[str]()
    simulate_figure4(make_request(), tmp_path, jobs=1, tell=told.append)
    assert told[0] == f"1 of 3 runs are there already, in {tmp_path}"


def test_a_curve_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'Downfall'"):
        simulate_figure4(make_request(names=("Downfall",)), tmp_path, jobs=1, tell=print)


def test_more_replicas_than_there_is_memory_for_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"replicas need about .* this machine has") as refused:
        simulate_figure4(make_request(some=10**9), tmp_path, jobs=1, tell=print)
    assert refused.value.fix.startswith("at most ")


def test_data_that_is_missing_is_named(tmp_path: Path) -> None:
    request = Figure4Request(TaskSpec("cutset.models:mnist", f"mnist:{tmp_path}/none"), Assumptions())
    with pytest.raises(BadInput, match="does not exist"):
        simulate_figure4(request, tmp_path, jobs=1, tell=print)


def test_the_time_to_an_accuracy_lies_between_two_points() -> None:
    points = [make_point(0.0, 0.1), make_point(10.0, 0.8), make_point(20.0, 0.9), make_point(30.0, 0.95)]
    assert find_crossing(points, 0.85) == pytest.approx(15.0)
    assert find_crossing(points, 0.05) == 0.0
    assert find_crossing(points, 0.96) is None


def test_the_picture_has_all_curves_and_says_what_is_simulated() -> None:
    curves = [
        Curve(f"curve {n}", "sync; sgd", n, [make_point(t, 0.5 + 0.01 * n * t) for t in (1.0, 5.0, 10.0)], None, 1.0, 1)
        for n in range(1, 4)
    ]
    figure = Figure4("digits", curves, 0.95, Assumptions().describe(parameters=1 << 20, batch=20))
    root = ElementTree.fromstring(render_figure4(figure))
    lines = [group.get("data-row") for group in root.iter(f"{SVG}g") if group.get("data-row")]
    assert len(lines) == 6  # two charts
    words = "".join(root.itertext())
    assert "Real: data, gradients, parameters" in words
    assert "Simulated: the time of steps" in words
    assert "curve 3, 3 replicas" in words
    assert [row["name"] for row in tabulate(figure).to_dict()["curves"]] == ["curve 1", "curve 2", "curve 3"]


def test_runs_of_other_versions_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = curve_runs.CurveSetup(TASK, batch_method="sandblaster:iterations=2")
    before = setup.digest
    monkeypatch.setattr(curve_runs, "VERSION", curve_runs.VERSION + 1)
    assert setup.digest != before
    assert msgspec.structs.replace(setup, batch_method="sandblaster:iterations=3").digest != setup.digest
