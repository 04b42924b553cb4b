"""DistBelief's figure 3 as a picture: speed-up against machines, one curve for each net."""

from collections.abc import Callable, Sequence

from ...figures.learning_curves import ChartAxis
from ...figures.svg import Point, element, format_number, measure_text, render_figure, text_line, tooltip
from ...figures.theme import SERIES_COLOURS
from .figure3 import STATED, Figure3, SpeedupPoint, StatedSpeedup

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP = 640.0, 360.0, 48.0, 40.0, 24.0
_DASHES = (None, "7 4", "2 4", "10 3 2 3", "4 2", "12 4")
_MARKED = (1, 16, 32, 64, 81, 128)  # the paper's marks on the axis of machines, and its 81
PlotPoint = Callable[[float, float], Point]


def render_figure3(figure: Figure3, *, standalone: bool = True) -> str:
    """Render speed-up against machines, with the assumed machines in the description."""
    nets = figure.nets
    stated = [s for s in STATED if s.task in nets]
    max_machines = max(point.machines for point in figure.points)
    top = max([p.speedup for p in figure.points] + [s.speedup for s in stated])
    axes = (
        ChartAxis(0.0, float(max(max_machines, 2)), "machines", lambda value: f"{value:.0f}"),
        ChartAxis(0.0, 1.06 * top, "speed-up", lambda value: f"{value:g}"),
    )
    top_y = _TOP + 20 * (len(nets) + 1)

    def place(machines: float, speedup: float) -> Point:
        x = _LEFT + axes[0].place(machines) * (_WIDTH - _LEFT - _RIGHT)
        return x, top_y + (1 - axes[1].place(speedup)) * _HEIGHT

    body = [_render_grid(axes, place, max_machines)]
    body += [_render_net(i, figure.select(net), place) for i, net in enumerate(nets)]
    body += [_render_stated(nets.index(s.task), s, place) for s in stated]
    body += [_render_key(i, net) for i, net in enumerate(nets)]
    body.append(_render_stated_key(len(nets)))
    caption = place(0, 0)[1] + 62
    body += [text_line(_LEFT, caption + 16 * i, line, "muted small") for i, line in enumerate(figure.assumptions)]
    description = " ".join([*figure.assumptions, *(_describe(figure.select(net)) for net in nets)])
    size = (_WIDTH, caption + 16 * len(figure.assumptions))
    title = "Speed-up against machines (DistBelief, figure 3)"
    return render_figure("figure3", title, description, size=size, body="".join(body), standalone=standalone)


def _describe(points: Sequence[SpeedupPoint]) -> str:
    return f"{points[0].task}: " + ", ".join(f"{p.speedup:.2f} on {p.machines}" for p in points) + "."


def _render_net(i: int, points: Sequence[SpeedupPoint], place: PlotPoint) -> str:
    colour = i % SERIES_COLOURS
    spots = [place(p.machines, p.speedup) for p in points]
    d = "M" + "L".join(f"{format_number(x)} {format_number(y)}" for x, y in spots)
    line = element("path", d=d, cls=f"curve c{colour}", stroke_dasharray=_DASHES[i % len(_DASHES)])
    dots = [
        element("circle", tooltip(_describe_point(p)), cx=x, cy=y, r=3, cls=f"d{colour}")
        for p, (x, y) in zip(points, spots, strict=True)
    ]
    best = max(points, key=lambda p: p.speedup)
    x, y = place(best.machines, best.speedup)
    label = text_line(x, y - 8, f"{best.speedup:.1f}", "small strong mid halo")
    return element("g", line, *dots, label, data_net=points[0].task)


def _describe_point(point: SpeedupPoint) -> str:
    return f"{point.task}, machines {point.machines}: {point.speedup:.2f} ({point.plan})"


def _render_stated(i: int, stated: StatedSpeedup, place: PlotPoint) -> str:
    """Render an open diamond; with an arrow upwards if the paper says more than that."""
    x, y = place(stated.machines, stated.speedup)
    cls = f"curve c{i % SERIES_COLOURS}"
    more = "more than " if stated.at_least else ""
    text = f"the paper: {stated.task} {more}{stated.speedup:g} times as fast on {stated.machines} machines"
    arrow = (
        element("path", d=f"M{format_number(x)} {format_number(y - 7)}v-10m-4 4l4 -4l4 4", cls=cls)
        if stated.at_least
        else ""
    )
    return element("g", tooltip(text), _render_diamond(x, y, cls), arrow, data_stated=stated.task)


def _render_diamond(x: float, y: float, cls: str) -> str:
    return element("path", d=f"M{format_number(x)} {format_number(y - 6)}l6 6l-6 6l-6 -6z", cls=cls)


def _render_key(i: int, net: str) -> str:
    y = _TOP - 6 + 20 * i
    line = element(
        "path",
        d=f"M{_LEFT:.0f} {y - 4:.0f}h26",
        cls=f"curve c{i % SERIES_COLOURS}",
        stroke_dasharray=_DASHES[i % len(_DASHES)],
    )
    return line + text_line(_LEFT + 34, y, net)


def _render_stated_key(rows: int) -> str:
    y = _TOP - 6 + 20 * rows
    caption = "as the paper's text says; an arrow: more than that"
    return _render_diamond(_LEFT + 13, y - 4, "mark") + text_line(_LEFT + 34, y, caption, "muted")


def _render_grid(axes: tuple[ChartAxis, ChartAxis], place: PlotPoint, max_machines: int) -> str:
    across, up = axes
    left, bottom = place(0, 0)
    out = []
    for mark in up.marks():
        y = place(0, mark)[1]
        out.append(element("path", d=f"M{left:.0f} {y:.1f}H{_WIDTH - _RIGHT:.0f}", cls="rule"))
        out.append(text_line(left - 8, y + 4, up.show(mark), "muted small end"))
    marks = [k for k in _MARKED if k <= max_machines] if max_machines >= _MARKED[1] else range(1, max_machines + 1)
    for k in marks:
        out.append(text_line(place(k, 0)[0], bottom + 16, across.show(k), "muted small mid"))
    out.append(element("path", d=f"M{left:.0f} {bottom:.1f}H{_WIDTH - _RIGHT:.0f}", cls="axis"))
    middle = (left + _WIDTH - _RIGHT) / 2
    out.append(text_line(middle - measure_text(across.label, 11) / 2, bottom + 36, across.label, "muted small"))
    out.append(text_line(left - 8, place(0, up.high)[1] - 6, up.label, "muted small"))
    return "".join(out)
