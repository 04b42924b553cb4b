"""DistBelief's figure 4 as a picture: training and test accuracy against time."""

from collections.abc import Callable

from ...figures.svg import render_figure
from ...units import format_percent, format_seconds
from ...virtual_time.results import Point
from .figure4 import Curve, Figure4
from .time_chart import HEIGHT, WIDTH, ChartCurve, find_times, render_key, render_notes, render_panel


def render_figure4(figure: Figure4, *, standalone: bool = True) -> str:
    """Render both charts, the key, and what is real and what is simulated."""
    tested = [_make_line(i, curve, lambda point: point.test_accuracy) for i, curve in enumerate(figure.curves)]
    trained = [_make_line(i, curve, lambda point: point.train_accuracy) for i, curve in enumerate(figure.curves)]
    across, low = find_times(tested), _choose_low_end(figure)
    panels = [
        render_panel(title, lines, across, (low, 1.0), corner=(x, 8), show=format_percent)
        for title, lines, x in (("Training accuracy", trained, 0.0), ("Test accuracy", tested, WIDTH))
    ]
    width = 2 * WIDTH
    key, below = render_key([_describe(curve) for curve in figure.curves], top=HEIGHT + 84, width=width)
    notes, bottom = render_notes(figure.facts, top=below, width=width)
    texts = [_describe(curve) for curve in figure.curves]
    title = f"Accuracy against time, task {figure.task} (DistBelief, figure 4)"
    body = "".join([*panels, key, notes])
    description = " ".join([*figure.facts, *(f"{text}." for text in texts)])
    return render_figure("figure4", title, description, size=(width, bottom), body=body, standalone=standalone)


def _make_line(number: int, curve: Curve, read: Callable[[Point], float | None]) -> ChartCurve:
    points = [(point.seconds, value) for point in curve.points if (value := read(point)) is not None]
    return ChartCurve(number, _describe(curve), [point for point in points if point[0] > 0])


def _describe(curve: Curve) -> str:
    count = "" if curve.replicas == 1 else f", {curve.replicas} replicas"
    end = "ends early" if curve.failure else f"{format_percent(curve.end.test_accuracy, digits=1)}"
    return f"{curve.name}{count}: {end} after {format_seconds(curve.end.seconds)}"


def _choose_low_end(figure: Figure4) -> float:
    """Return where the axis begins: well below the worst end of a curve that has learned something."""
    ends = [curve.end.test_accuracy or 0.0 for curve in figure.curves]
    return max(0.0, min([end for end in ends if end > figure.target - 0.3], default=0.3) - 0.25)
