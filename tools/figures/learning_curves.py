"""Learning curves of a run: test accuracy or test loss over time, loss over samples, one line a row of the results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, isfinite
from typing import Any

from ..units import choose_ticks, format_count, format_percent, format_seconds
from .svg import (
    Point,
    element,
    fit_text,
    format_number,
    item,
    measure_text,
    name_figure,
    render_figure,
    text_line,
    wrap_text,
)
from .theme import SERIES_COLOURS

_HEIGHT, _LEFT, _RIGHT = 300.0, 52.0, 24.0
_DASHES = (None, "7 4", "2 4", "10 3 2 3", "4 2", "12 4")
_MAX_POINTS = 140


@dataclass(frozen=True)
class ChartAxis:
    """One direction of a chart: its range, how its numbers read, and its name."""

    low: float
    high: float
    label: str
    show: Callable[[float], str]

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        return (value - self.low) / (self.high - self.low)

    def marks(self) -> list[float]:
        return [self.low + tick for tick in choose_ticks(self.high - self.low)]


def render_accuracy_curves(result: Mapping[str, Any], *, standalone: bool = True, narrow: bool = False) -> str:
    """Render test accuracy over seconds, with the target as a dotted line; "" without points."""
    lines = _list_curves(result, "test_accuracy")
    targets = sorted({float(row["target"]) for row in result["rows"] if row.get("target") is not None})
    points = [point for _, line in lines for point in line]
    if not points:
        return ""
    low = _choose_low_end([max((y for _, y in line), default=1.0) for _, line in lines], targets)
    lines = [(name, _clip_below(line, low)) for name, line in lines]
    x = ChartAxis(0.0, max(x for x, _ in points) or 1.0, "time", format_seconds)
    y = ChartAxis(low, 1.0, "test accuracy", format_percent)
    ends = [format_percent(line[-1][1], digits=1) if line else "" for _, line in lines]
    return _render_chart(
        "accuracy",
        "Test accuracy over time",
        lines,
        axes=(x, y),
        ends=ends,
        goals=targets,
        standalone=standalone,
        narrow=narrow,
    )


def render_test_loss_curves(result: Mapping[str, Any], *, standalone: bool = True, narrow: bool = False) -> str:
    """Render test loss over seconds, for a task without an accuracy; "" without points, or where there is one."""
    lines = _list_curves(result, "test_loss")
    points = [point for _, line in lines for point in line]
    if not points or any(line for _, line in _list_curves(result, "test_accuracy")):
        return ""
    low, high = min(y for _, y in points), max(y for _, y in points)
    x = ChartAxis(0.0, max(x for x, _ in points) or 1.0, "time", format_seconds)
    y = ChartAxis(min(0.0, low), 1.04 * high if high > 0 else low + 1.0, "test loss", _format_plain)
    ends = [_format_plain(line[-1][1]) if line else "" for _, line in lines]
    return _render_chart(
        "test-loss",
        "Test loss over time",
        lines,
        axes=(x, y),
        ends=ends,
        standalone=standalone,
        narrow=narrow,
    )


def _list_curves(result: Mapping[str, Any], score: str) -> list[tuple[str, list[Point]]]:
    """Return a score over seconds for each row, as far as it was measured."""
    return [
        (
            str(row["name"]),
            _drop_infinite([(p["seconds"], p[score]) for p in row.get("curve") or () if p[score] is not None]),
        )
        for row in result["rows"]
    ]


def _choose_low_end(best: list[float], targets: list[float]) -> float:
    """Choose where the accuracy axis begins: near the targets, to tell curves apart, with all best values in view."""
    near = 1 - 6 * (1 - max(targets, default=0.0))
    return floor(10 * max(min(near, *(value - 0.1 for value in best)), 0.0) + 1e-9) / 10


def _clip_below(line: list[Point], low: float) -> list[Point]:
    """Return the part of a line from where it rises above `low` for the first time."""
    for i, (x, y) in enumerate(line):
        if y < low:
            continue
        if i == 0:
            return line
        x0, y0 = line[i - 1]
        return [(x0 + (x - x0) * (low - y0) / (y - y0), low), *((a, max(b, low)) for a, b in line[i:])]
    return []


def render_loss_curves(result: Mapping[str, Any], *, standalone: bool = True, narrow: bool = False) -> str:
    """Render training loss over samples, averaged over neighbours; "" without points."""
    lines = [(str(row["name"]), average_runs(_drop_infinite(row.get("losses") or ()))) for row in result["rows"]]
    points = [point for _, line in lines for point in line]
    if not points:
        return ""
    x = ChartAxis(0.0, max(x for x, _ in points) or 1.0, "samples", format_count)
    y = ChartAxis(
        min(0.0, *(y for _, y in points)), max(y for _, y in points) * 1.04 or 1.0, "training loss", _format_plain
    )
    ends = [_format_plain(line[-1][1]) if line else "" for _, line in lines]
    return _render_chart(
        "loss",
        "Training loss over samples",
        lines,
        axes=(x, y),
        ends=ends,
        standalone=standalone,
        narrow=narrow,
    )


def average_runs(points: list[Point]) -> list[Point]:
    """Reduce to at most 140 points: the means of equal runs of neighbours."""
    run = -(-len(points) // _MAX_POINTS)
    groups = [points[i : i + run] for i in range(0, len(points), max(run, 1))]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def _drop_infinite(points: Sequence[Sequence[float]]) -> list[Point]:
    pairs = [(float(point[0]), float(point[1])) for point in points]
    return [(x, y) for x, y in pairs if isfinite(x) and isfinite(y)]


def _format_plain(value: float) -> str:
    return f"{value:.3g}"


def _render_chart(
    name: str,
    title: str,
    lines: list[tuple[str, list[Point]]],
    *,
    axes: tuple[ChartAxis, ChartAxis],
    ends: list[str],
    standalone: bool,
    narrow: bool,
    goals: Sequence[float] = (),
) -> str:
    width = 320.0 if narrow else 540.0
    labels = [f"{label}: {end}" if end else label for (label, _), end in zip(lines, ends, strict=True)]
    targets = [f"target {axes[1].show(goal)}" for goal in goals]
    key, top = _render_key(labels, targets, 8.0 if narrow else _LEFT, width)
    bottom = top + _HEIGHT - 90
    across, up = axes

    def spot(point: Point) -> Point:
        wide = width - _LEFT - _RIGHT
        return (_LEFT + across.place(point[0]) * wide, bottom - up.place(point[1]) * (bottom - top))

    out = [_render_grid(across, up, spot, width)]
    for goal in goals:
        y = spot((across.low, goal))[1]
        out.append(element("path", d=f"M{_LEFT:.0f} {y:.1f}H{width - _RIGHT:.0f}", cls="goal"))
    out.append(key)
    for i, (label, line) in enumerate(lines):
        if line:
            out.append(_render_line(i, label, [spot(point) for point in line], ends[i]))
    final = "; ".join(f"{label} ends at {end}" for (label, _), end in zip(lines, ends, strict=True) if end)
    size, name = (width, bottom + 44), name_figure(name, narrow=narrow)
    return render_figure(name, title, final + ".", size=size, body="".join(out), standalone=standalone)


def _render_line(i: int, label: str, points: list[Point], value: str) -> str:
    colour = i % SERIES_COLOURS
    d = "M" + "L".join(f"{format_number(x)} {format_number(y)}" for x, y in points)
    x, y = points[-1]
    path = element("path", d=d, cls=f"curve c{colour}", stroke_dasharray=_DASHES[i % len(_DASHES)])
    dot = element("circle", cx=x, cy=y, r=3.5, cls=f"d{colour}")
    return item(f"{label}: ends at {value}", path, dot, data_row=label)


def _render_key(labels: Sequence[str], targets: Sequence[str], left: float, width: float) -> tuple[str, float]:
    """Render the lines' names with where they end, as many lines each as that needs; return them and what is below."""
    out, y = list[str](), 18.0
    for i, label in enumerate([*labels, *targets]):
        line = f"M{left:.0f} {y - 4:.0f}h26"
        if i < len(labels):
            dashes = _DASHES[i % len(_DASHES)]
            out.append(element("path", d=line, cls=f"curve c{i % SERIES_COLOURS}", stroke_dasharray=dashes))
        else:
            out.append(element("path", d=line, cls="goal"))
        for part in wrap_text(label, width - left - 40, 12.5):
            out.append(text_line(left + 34, y, fit_text(part, width - left - 40, 12.5)))
            y += 16
        y += 4
    return "".join(out), y + 4


def _render_grid(across: ChartAxis, up: ChartAxis, spot: Callable[[Point], Point], width: float) -> str:
    out = []
    left, bottom = spot((across.low, up.low))
    for mark in up.marks():
        y = spot((across.low, mark))[1]
        out.append(element("path", d=f"M{left:.0f} {y:.1f}H{width - _RIGHT:.0f}", cls="rule"))
        out.append(text_line(left - 8, y + 4, up.show(mark), "muted small end"))
    for mark in across.marks()[:: 1 if width > 400 else 2]:
        out.append(text_line(spot((mark, up.low))[0], bottom + 16, across.show(mark), "muted small mid"))
    out.append(element("path", d=f"M{left:.0f} {bottom:.1f}H{width - _RIGHT:.0f}", cls="axis"))
    middle = (left + width - _RIGHT) / 2
    out.append(text_line(middle - measure_text(across.label, 11) / 2, bottom + 34, across.label, "muted small"))
    return "".join(out)
