"""Curves of a run: test accuracy over time and loss over samples, one line a row of the result table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, isfinite
from typing import Any

from .theme import SERIES_COLOURS
from .svg import Point, figure, fit, number, tag, text_width, tooltip, words
from ..units import count_text, percent_text, seconds_text, ticks

_WIDTH, _HEIGHT, _LEFT, _RIGHT = 560.0, 300.0, 52.0, 62.0
_DASHES = (None, "7 4", "2 4", "10 3 2 3", "4 2", "12 4")
_MOST_POINTS = 140


@dataclass(frozen=True)
class Axis:
    """One direction of a chart: its range, how its numbers read, and its name."""

    low: float
    high: float
    label: str
    show: Callable[[float], str]

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        return (value - self.low) / (self.high - self.low)

    def marks(self) -> list[float]:
        return [self.low + tick for tick in ticks(self.high - self.low)]


def accuracy_curves(result: Mapping[str, Any], *, standalone: bool = True) -> str:
    """Test accuracy over seconds, with the target as a dotted line; "" without points."""
    lines = [
        (str(row["name"]), _finite([(p["seconds"], p["test_accuracy"]) for p in row.get("curve") or ()]))
        for row in result["rows"]
    ]
    targets = sorted({float(row["target"]) for row in result["rows"] if row.get("target") is not None})
    points = [point for _, line in lines for point in line]
    if not points:
        return ""
    low = _floor([max((y for _, y in line), default=1.0) for _, line in lines], targets)
    lines = [(name, _above(line, low)) for name, line in lines]
    x = Axis(0.0, max(x for x, _ in points) or 1.0, "time", seconds_text)
    y = Axis(low, 1.0, "test accuracy", percent_text)
    ends = [percent_text(line[-1][1], digits=1) if line else "" for _, line in lines]
    return _chart(
        "accuracy", "Test accuracy over time", lines, axes=(x, y), ends=ends, goals=targets, standalone=standalone
    )


def _floor(best: list[float], targets: list[float]) -> float:
    """Where the accuracy axis begins: near enough to the targets to tell the curves apart, all best values in view."""
    near = 1 - 6 * (1 - max(targets, default=0.0))
    return floor(10 * max(min(near, *(value - 0.1 for value in best)), 0.0) + 1e-9) / 10


def _above(line: list[Point], low: float) -> list[Point]:
    """The part of a line from where it rises over `low` for the first time."""
    for i, (x, y) in enumerate(line):
        if y < low:
            continue
        if i == 0:
            return line
        x0, y0 = line[i - 1]
        return [(x0 + (x - x0) * (low - y0) / (y - y0), low), *((a, max(b, low)) for a, b in line[i:])]
    return []


def loss_curves(result: Mapping[str, Any], *, standalone: bool = True) -> str:
    """Training loss over samples, averaged over neighbours; "" without points."""
    lines = [(str(row["name"]), thin(_finite(row.get("losses") or ()))) for row in result["rows"]]
    points = [point for _, line in lines for point in line]
    if not points:
        return ""
    x = Axis(0.0, max(x for x, _ in points) or 1.0, "samples", count_text)
    y = Axis(min(0.0, *(y for _, y in points)), max(y for _, y in points) * 1.04 or 1.0, "training loss", _plain)
    ends = [_plain(line[-1][1]) if line else "" for _, line in lines]
    return _chart("loss", "Training loss over samples", lines, axes=(x, y), ends=ends, goals=[], standalone=standalone)


def thin(points: list[Point]) -> list[Point]:
    """At most a hundred and forty points: the means of equal runs of neighbours."""
    run = -(-len(points) // _MOST_POINTS)
    groups = [points[i : i + run] for i in range(0, len(points), max(run, 1))]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def _finite(points: Sequence[Sequence[float]]) -> list[Point]:
    pairs = [(float(point[0]), float(point[1])) for point in points]
    return [(x, y) for x, y in pairs if isfinite(x) and isfinite(y)]


def _plain(value: float) -> str:
    return f"{value:.3g}"


def _chart(
    name: str,
    title: str,
    lines: list[tuple[str, list[Point]]],
    *,
    axes: tuple[Axis, Axis],
    ends: list[str],
    goals: list[float],
    standalone: bool,
) -> str:
    top = 22.0 + 20.0 * len(lines)
    bottom = top + _HEIGHT - 90
    across, up = axes

    def spot(point: Point) -> Point:
        wide = _WIDTH - _LEFT - _RIGHT
        return (_LEFT + across.place(point[0]) * wide, bottom - up.place(point[1]) * (bottom - top))

    out = [_grid(across, up, spot)]
    for goal in goals:
        y = spot((across.low, goal))[1]
        out.append(tag("path", d=f"M{_LEFT:.0f} {y:.1f}H{_WIDTH - _RIGHT:.0f}", cls="goal"))
        out.append(words(_LEFT + 4, y - 4, f"target {up.show(goal)}", "muted tiny"))
    heights = _spread([spot(line[-1])[1] for _, line in lines if line])
    for i, (label, line) in enumerate(lines):
        out.append(_swatch(i, label))
        if line:
            out.append(_line(i, label, [spot(point) for point in line], ends[i], heights.pop(0)))
    final = "; ".join(f"{label} ends at {end}" for (label, _), end in zip(lines, ends, strict=True) if end)
    return figure(name, title, final + ".", size=(_WIDTH, bottom + 44), body="".join(out), standalone=standalone)


def _line(i: int, label: str, points: list[Point], value: str, end: float) -> str:
    colour = i % SERIES_COLOURS
    d = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
    x, y = points[-1]
    path = tag("path", d=d, cls=f"curve c{colour}", stroke_dasharray=_DASHES[i % len(_DASHES)])
    dot = tag("circle", cx=x, cy=y, r=3.5, cls=f"d{colour}")
    return tag("g", tooltip(f"{label}: {value}"), path, dot, words(x + 8, end + 4, value, "small halo"), data_row=label)


def _swatch(i: int, label: str) -> str:
    y = 18 + 20 * i
    line = tag(
        "path",
        d=f"M{_LEFT:.0f} {y - 4}h26",
        cls=f"curve c{i % SERIES_COLOURS}",
        stroke_dasharray=_DASHES[i % len(_DASHES)],
    )
    return line + words(_LEFT + 34, y, fit(label, _WIDTH - _LEFT - 50))


def _grid(across: Axis, up: Axis, spot: Callable[[Point], Point]) -> str:
    out = []
    left, bottom = spot((across.low, up.low))
    for mark in up.marks():
        y = spot((across.low, mark))[1]
        out.append(tag("path", d=f"M{left:.0f} {y:.1f}H{_WIDTH - _RIGHT:.0f}", cls="rule"))
        out.append(words(left - 8, y + 4, up.show(mark), "muted tiny end"))
    for mark in across.marks():
        out.append(words(spot((mark, up.low))[0], bottom + 16, across.show(mark), "muted tiny mid"))
    out.append(tag("path", d=f"M{left:.0f} {bottom:.1f}H{_WIDTH - _RIGHT:.0f}", cls="axis"))
    middle = (left + _WIDTH - _RIGHT) / 2
    out.append(words(middle - text_width(across.label, 11) / 2, bottom + 34, across.label, "muted small"))
    return "".join(out)


def _spread(heights: list[float], apart: float = 13.0) -> list[float]:
    """Heights of end labels, pushed down where they would overlap; in the given order."""
    out = list(heights)
    floor_y = float("-inf")
    for i in sorted(range(len(heights)), key=lambda i: heights[i]):
        out[i] = max(heights[i], floor_y + apart)
        floor_y = out[i]
    return out
