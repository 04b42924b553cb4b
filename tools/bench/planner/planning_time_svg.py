"""The time to plan as a picture: CPU seconds against machines, one line for each net, both axes logarithmic."""

from collections.abc import Callable, Sequence
from itertools import groupby
from math import ceil, floor, log10

from ...figures.svg import Point, element, format_number, render_figure, text_line, tooltip
from ...figures.theme import SERIES_COLOURS
from ...units import format_seconds
from .planning_time import PlanningTime

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP = 640.0, 320.0, 64.0, 40.0, 24.0
_DASHES = (None, "7 4", "2 4", "10 3 2 3")


def render_planning_time(rows: Sequence[PlanningTime], *, standalone: bool = True) -> str:
    """Render the seconds of every plan, with what they were on as tooltips."""
    nets = [(net, list(points)) for net, points in groupby(rows, key=lambda row: (row.net, row.operators))]
    counts = sorted({row.machines for row in rows})
    low, high = floor(log10(min(row.cpu_s for row in rows))), ceil(log10(max(row.cpu_s for row in rows)))
    across = max(1e-9, log10(counts[-1] / counts[0]))
    top = _TOP + 20 * len(nets)

    def place(machines: int, seconds: float) -> Point:
        x = _LEFT + log10(machines / counts[0]) / across * (_WIDTH - _LEFT - _RIGHT)
        return x, top + (high - log10(seconds)) / max(1, high - low) * _HEIGHT

    body = [_render_grid(counts, range(low, high + 1), place)]
    for number, ((net, operators), points) in enumerate(nets):
        style = {"cls": f"curve c{number % SERIES_COLOURS}", "stroke_dasharray": _DASHES[number % len(_DASHES)]}
        spots = [place(row.machines, row.cpu_s) for row in points]
        d = "M" + "L".join(f"{format_number(x)} {format_number(y)}" for x, y in spots)
        dots = [
            element("circle", tooltip(_describe(row)), cx=x, cy=y, r=3, cls=f"d{number % SERIES_COLOURS}")
            for row, (x, y) in zip(points, spots, strict=True)
        ]
        body.append(element("g", element("path", d=d, **style), *dots, data_net=net))
        y = _TOP - 6 + 20 * number
        body.append(element("path", d=f"M{_LEFT:.0f} {y - 4:.0f}h26", **style))
        body.append(text_line(_LEFT + 34, y, f"{net}: {operators} operators"))
    bottom = top + _HEIGHT
    body.append(text_line((_LEFT + _WIDTH - _RIGHT) / 2, bottom + 34, "machines", "muted small mid"))
    description = " ".join(_describe(row) for row in rows)
    title = "CPU seconds to plan, against machines"
    return render_figure(
        "planning", title, description, size=(_WIDTH, bottom + 46), body="".join(body), standalone=standalone
    )


def _render_grid(counts: Sequence[int], decades: Sequence[int], place: Callable[[int, float], Point]) -> str:
    out = []
    for decade in decades:
        x, y = place(counts[0], 10.0**decade)
        out.append(element("path", d=f"M{x:.0f} {y:.1f}H{_WIDTH - _RIGHT:.0f}", cls="rule"))
        out.append(text_line(x - 8, y + 4, f"{10.0**decade:g} s", "muted small end"))
    for count in counts:
        x, y = place(count, 10.0 ** decades[0])
        out.append(text_line(x, y + 16, str(count), "muted small mid"))
    return "".join(out)


def _describe(row: PlanningTime) -> str:
    return f"{row.net} on {row.machines} machines: {format_seconds(row.cpu_s)}."
