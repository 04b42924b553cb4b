"""The Gantt chart: a measured step below the predicted one, on the same scale."""

import xml.etree.ElementTree as ElementTree

import msgspec
import pytest

from cutset.partition.placement.placement_file import Placement, TimelineSpan
from cutset.tools.analysis.measured_step import MeasuredStep
from cutset.tools.figures.gantt import render_gantt


def like(placement: Placement, *, times: float) -> MeasuredStep:
    """A measured step that took so many times the predicted one, with a wait and other work on machine 0."""
    spans = [
        TimelineSpan(s.machine, s.kind, s.label, times * s.start_s, times * s.stop_s)
        for s in placement.predicted.timeline
    ]
    end = times * placement.predicted.step_s
    extra = [TimelineSpan(0, "wait", "for 1", 0.5 * end, 0.6 * end), TimelineSpan(0, "other", "work", 0.9 * end, end)]
    return MeasuredStep(7, 5, end, spans + extra)


def bars(svg: str) -> list[tuple[str, list[ElementTree.Element]]]:
    """Each machine's row in order: its name and its rectangles."""
    groups = [e for e in ElementTree.fromstring(svg).iter() if e.get("data-machine")]
    return [(str(g.get("data-machine")), [e for e in g.iter() if e.tag.endswith("rect")]) for g in groups]


def track(rects: list[ElementTree.Element]) -> float:
    (found,) = [float(e.get("width", 0)) for e in rects if e.get("class") == "track"]
    return found


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("times", [0.5, 1.0, 3.0])
def test_both_steps_are_drawn_on_one_scale(placement: Placement, times: float) -> None:
    names = [machine.name for machine in placement.machines]
    found = bars(render_gantt(placement, like(placement, times=times)))
    assert [name for name, _ in found] == 2 * names
    predicted, measured = found[: len(names)], found[len(names) :]
    for (_, above), (_, below) in zip(predicted, measured, strict=True):
        assert track(below) / track(above) == pytest.approx(times, rel=1e-2)


def test_waits_and_other_work_are_shown_of_a_measured_step_alone(mlp: Placement) -> None:
    marked = [
        [e.get("class") for e in rects if e.get("class") in ("wait", "other")] for _, rects in bars(render_gantt(mlp))
    ]
    assert marked == [[], []]
    both = bars(render_gantt(mlp, like(mlp, times=2.0)))
    marked = [[e.get("class") for e in rects if e.get("class") in ("wait", "other")] for _, rects in both]
    assert marked == [[], [], ["wait", "other"], []]
    assert "other work" in render_gantt(mlp, like(mlp, times=2.0))
    assert "other work" not in render_gantt(mlp)


def test_the_titles_say_both_times_and_their_ratio(mlp: Placement) -> None:
    svg = render_gantt(mlp, like(mlp, times=2.0))
    assert ">A step, predicted and measured<" in svg
    assert "times the predicted" in svg
    assert ">Measured: " in svg
    assert ">Predicted: " in svg
    assert "as predicted (" in render_gantt(mlp, like(mlp, times=1.01))
    assert "Measured" not in render_gantt(mlp)


def test_a_measured_step_is_drawn_without_a_prediction(mlp: Placement) -> None:
    unknown = msgspec.structs.replace(mlp.predicted, timeline=[], step_s=0.0)
    found = bars(render_gantt(msgspec.structs.replace(mlp, predicted=unknown), like(mlp, times=1.0)))
    assert [name for name, _ in found] == [machine.name for machine in mlp.machines]


def test_nothing_is_drawn_beyond_the_axis(placement: Placement) -> None:
    for name, rects in bars(render_gantt(placement, like(placement, times=2.5))):
        for e in rects:
            assert float(e.get("x", 0)) + float(e.get("width", 0)) <= 1120 - 66 + 1, name
