"""The time to an accuracy against machines, on a small net."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from cutset.tools.bench.planner.figure3 import SpeedupPoint
from cutset.tools.bench.virtual_time import figure5
from cutset.tools.bench.virtual_time.assumptions import Assumptions
from cutset.tools.bench.virtual_time.figure5 import (
    ADAGRAD,
    BATCH,
    CUT,
    SGD,
    Figure5,
    Figure5Request,
    TimedRun,
    choose_width,
    simulate_figure5,
    tabulate,
)
from cutset.tools.bench.virtual_time.figure5_svg import render_figure5
from cutset.tools.task.load_task import TaskSpec

SVG = "{http://www.w3.org/2000/svg}"


def speedup(machines: int, factor: float) -> SpeedupPoint:
    return SpeedupPoint("net", machines, 1 / factor, 1 / factor, factor, "slices", 0, 1.0)


def test_a_replica_is_as_wide_as_it_is_worth() -> None:
    assert choose_width([speedup(1, 1.0), speedup(2, 1.8), speedup(4, 2.5), speedup(8, 3.0)]) == 4
    assert choose_width([speedup(1, 1.0), speedup(2, 0.5)]) == 1


@pytest.mark.run
def test_more_machines_take_less_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure5, "WIDTHS", (1, 2))  # plans take longer than runs
    task, assumed = TaskSpec("cutset.models:digits"), Assumptions()
    request = Figure5Request(
        task, assumed, replicas=(2, 4), batch_replicas=(2, 8), epochs=4.0, iterations=8, lr=0.2, target=0.7
    )
    found = simulate_figure5(request, tmp_path, jobs=2, tell=lambda line: None)
    assert found.methods == [CUT, SGD, ADAGRAD, BATCH]
    two, four = found.select(ADAGRAD)
    assert two.seconds is not None
    assert four.seconds is not None
    assert four.seconds < two.seconds
    assert (two.machines, two.cores) == (2 * two.width + 1, 4 * (2 * two.width + 1))
    assert [run.machines for run in found.select(CUT)] == [1, 2]
    assert "A replica is" in found.facts[-1]


def test_the_picture_has_a_line_a_method_and_says_what_is_simulated() -> None:
    runs = [TimedRun(SGD, n, 1, n + 1, 4 * (n + 1), 100.0 / n) for n in (1, 2, 4)]
    runs.append(TimedRun(ADAGRAD, 2, 1, 3, 12, None))
    figure = Figure5("digits", runs, 0.9, [speedup(1, 1.0)], Assumptions().describe(parameters=1 << 20, batch=20))
    root = ElementTree.fromstring(render_figure5(figure))
    assert [group.get("data-row") for group in root.iter(f"{SVG}g") if group.get("data-row")] == [SGD, SGD]
    words = "".join(root.itertext())
    assert "Simulated: the time of steps" in words
    assert f"{ADAGRAD}: never" in words
    assert tabulate(figure).to_dict()["runs"][-1]["seconds"] is None
