"""DistBelief's figure 5 as a picture: the time to a fixed accuracy against machines and against cores."""

from collections.abc import Callable, Sequence

from ...figures.svg import Point, element, format_number, item, measure_text, render_figure, text_line
from ...figures.theme import SERIES_COLOURS
from ...units import format_seconds
from .figure5 import Figure5, TimedRun
from .time_chart import DASHES, HEIGHT, LEFT, RIGHT, WIDTH, LogAxis, format_time, render_key, render_notes

_TIMES = tuple(base * unit for unit in (1.0, 60.0, 3600.0) for base in (1, 2, 5, 10, 20, 30) if base * unit < 3600 * 24)
_COUNTS = tuple(4**n for n in range(10))


def render_figure5(figure: Figure5, *, standalone: bool = True) -> str:
    """Render both charts, the key, and what is real and what is simulated."""
    up = _find_axis([run.seconds for run in figure.runs if run.seconds is not None])
    panels = [
        _render_panel(figure, f"Time to {figure.target:.0%}, against {label}", label, count, up, left)
        for label, count, left in (
            ("machines", lambda run: run.machines, 0.0),
            ("cores", lambda run: run.cores, WIDTH),
        )
    ]
    width = 2 * WIDTH
    texts = [_describe(figure.select(method)) for method in figure.methods]
    key, below = render_key(texts, top=HEIGHT + 84, width=width)
    notes, bottom = render_notes(figure.facts, top=below, width=width)
    title = f"Time to {figure.target:.0%} test accuracy, task {figure.task} (DistBelief, figure 5)"
    body, description = "".join([*panels, key, notes]), " ".join([*figure.facts, *(f"{text}." for text in texts)])
    return render_figure("figure5", title, description, size=(width, bottom), body=body, standalone=standalone)


def _find_axis(values: Sequence[float]) -> LogAxis:
    low, high = min(values, default=1.0), max(values, default=10.0)
    return LogAxis(low / 1.3, max(high, 2 * low) * 1.3)


def _describe(runs: Sequence[TimedRun]) -> str:
    reached = [run for run in runs if run.seconds is not None]
    if not reached:
        return f"{runs[0].method}: never"
    best = min(reached, key=lambda run: run.seconds or 0.0)
    return f"{runs[0].method}: at best {format_seconds(best.seconds)} on {best.machines}"


def _render_panel(
    figure: Figure5, title: str, label: str, count: Callable[[TimedRun], int], up: LogAxis, corner: float
) -> str:
    left, right, top, bottom = corner + LEFT + 8, corner + WIDTH - RIGHT, 34.0, 34.0 + HEIGHT
    across = _find_axis([float(count(run)) for run in figure.runs])

    def place(x: float, y: float) -> Point:
        return left + across.place(x) * (right - left), bottom - up.place(y) * (bottom - top)

    out = [text_line(left, 22, title, "strong")]
    for seconds in _TIMES:
        if up.low <= seconds <= up.high:
            y = place(across.low, seconds)[1]
            out.append(element("path", d=f"M{left:.0f} {y:.1f}H{right:.0f}", cls="rule"))
            out.append(text_line(left - 6, y + 4, format_time(seconds), "muted small end"))
    for number in _COUNTS:
        if across.low <= number <= across.high:
            x = place(number, up.low)[0]
            out.append(element("path", d=f"M{x:.1f} {top:.0f}V{bottom:.0f}", cls="rule"))
            out.append(text_line(x, bottom + 16, f"{number:,}", "muted small mid"))
    out.append(element("path", d=f"M{left:.0f} {bottom:.1f}H{right:.0f}", cls="axis"))
    middle = (left + right) / 2 - measure_text(label, 11) / 2
    out.append(text_line(middle, bottom + 34, label, "muted small"))
    for number, method in enumerate(figure.methods):
        spots = [place(count(run), run.seconds) for run in figure.select(method) if run.seconds is not None]
        out.append(_render_line(number, method, spots))
    return "".join(out)


def _render_line(number: int, method: str, spots: Sequence[Point]) -> str:
    if not spots:
        return ""
    colour, dashes = number % SERIES_COLOURS, DASHES[number // SERIES_COLOURS]
    d = "M" + "L".join(f"{format_number(x)} {format_number(y)}" for x, y in spots)
    dots = [element("circle", cx=x, cy=y, r=3, cls=f"d{colour}") for x, y in spots]
    return item(method, element("path", d=d, cls=f"curve c{colour}", stroke_dasharray=dashes), *dots, data_row=method)
