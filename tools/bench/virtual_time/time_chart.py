"""A chart over time: one curve a row, with the time on a logarithmic axis, and what is real and what is simulated."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import dropwhile

from ...figures.svg import Point, element, fit_text, format_number, item, measure_text, text_line, wrap_text
from ...figures.theme import SERIES_COLOURS
from ...units import format_seconds

DASHES = (None, "7 4", "2 4", "10 3 2 3", "4 2", "12 4")
WIDTH, HEIGHT, LEFT, RIGHT = 440.0, 300.0, 46.0, 14.0
_STEPS = (1.0, 10.0, 60.0, 600.0, 3600.0, 36000.0, 360000.0, 3600000.0)  # seconds to hours, as people read them


@dataclass(frozen=True)
class LogAxis:
    """A direction whose ends are positive. place: where a value lies, from 0 to 1."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Return where a value lies."""
        spot = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return min(1.0, spot)


@dataclass(frozen=True)
class ChartCurve:
    """A curve: its place in the key, and its points, which have positive times."""

    number: int
    name: str
    points: Sequence[Point]


def find_times(lines: Sequence[ChartCurve]) -> LogAxis:
    """Return an axis on which all points lie but those of the first hundredth of the shortest curve."""
    ends = [x for line in lines for x, _ in line.points[-1:]]
    starts = [x for line in lines for x, _ in line.points if x > 0]
    return LogAxis(max(min(starts), min(ends) / 100), max(ends) * 1.05)


def render_panel(
    title: str,
    lines: Sequence[ChartCurve],
    across: LogAxis,
    up: tuple[float, float],
    *,
    corner: Point,
    show: Callable[[float], str],
    label: str = "simulated time",
) -> str:
    """Render one chart, of which `corner` is the upper left one. up: the lowest and the highest value."""
    x0, y0 = corner
    left, right, top, bottom = x0 + LEFT, x0 + WIDTH - RIGHT, y0 + 26, y0 + 26 + HEIGHT

    def place(point: Point) -> Point:
        x, y = point
        part = (min(max(y, up[0]), up[1]) - up[0]) / (up[1] - up[0])
        return left + across.place(x) * (right - left), bottom - part * (bottom - top)

    out = [text_line(left, y0 + 14, title, "strong")]
    for value in _choose_marks(*up):
        y = place((across.low, value))[1]
        out.append(element("path", d=f"M{left:.0f} {y:.1f}H{right:.0f}", cls="rule"))
        out.append(text_line(left - 6, y + 4, show(value), "muted small end"))
    for seconds in _STEPS:
        if across.low <= seconds <= across.high:
            x = place((seconds, up[0]))[0]
            out.append(element("path", d=f"M{x:.1f} {top:.0f}V{bottom:.0f}", cls="rule"))
            out.append(text_line(x, bottom + 16, format_time(seconds), "muted small mid"))
    out.append(element("path", d=f"M{left:.0f} {bottom:.1f}H{right:.0f}", cls="axis"))
    middle = (left + right) / 2 - measure_text(label, 11) / 2
    out.append(text_line(middle, bottom + 34, label, "muted small"))
    for line in lines:
        shown = dropwhile(lambda point: point[0] < across.low or point[1] < up[0], line.points)
        out.append(_render_line(line, [place(point) for point in shown]))
    return "".join(out)


def format_time(seconds: float) -> str:
    """Return a time as people say it: 10 min, 1 h."""
    if seconds >= 3600:
        return f"{seconds / 3600:g} h"
    return f"{seconds / 60:g} min" if seconds >= 60 else format_seconds(seconds)


def _choose_marks(low: float, high: float) -> list[float]:
    """Return some four round values between both."""
    rough = (high - low) / 4
    step = next(s for e in (1e-3, 1e-2, 1e-1, 1.0) for s in (e, 2 * e, 5 * e) if s >= rough * 0.8)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _render_line(line: ChartCurve, spots: Sequence[Point]) -> str:
    if not spots:
        return ""
    d = "M" + "L".join(f"{format_number(x)} {format_number(y)}" for x, y in spots)
    path = element("path", d=d, cls=_class_of(line.number), stroke_dasharray=_dash_of(line.number))
    dot = element("circle", cx=spots[-1][0], cy=spots[-1][1], r=2.5, cls=f"d{line.number % SERIES_COLOURS}")
    return item(line.name, path, dot, data_row=line.name)


def render_key(labels: Sequence[str], *, top: float, width: float) -> tuple[str, float]:
    """Render the names of the curves in two columns; return them and what is below."""
    rows, half, out = -(-len(labels) // 2), width / 2, list[str]()
    for number, label in enumerate(labels):
        column, row = divmod(number, rows)
        x, y = column * half + 14, top + 18 * row + 10
        line = f"M{x:.0f} {y - 4:.0f}h28"
        out.append(element("path", d=line, cls=_class_of(number), stroke_dasharray=_dash_of(number)))
        out.append(text_line(x + 36, y, fit_text(label, half - 60, 12)))
    return "".join(out), top + 18 * rows + 10


def render_notes(notes: Sequence[str], *, top: float, width: float) -> tuple[str, float]:
    """Render sentences; return them and what is below."""
    lines = [line for note in notes for line in wrap_text(note, width - 28, 11.5)]
    out = [text_line(14, top + 12 + 16 * i, line, "muted small") for i, line in enumerate(lines)]
    return "".join(out), top + 16 * len(lines) + 10


def _class_of(number: int) -> str:
    return f"curve c{number % SERIES_COLOURS}"


def _dash_of(number: int) -> str | None:
    return DASHES[number // SERIES_COLOURS % len(DASHES)]
