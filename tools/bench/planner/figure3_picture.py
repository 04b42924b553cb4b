"""The picture of `cutset bench figure3`: a line for each net, and the speed-ups that the paper's text gives."""

from collections.abc import Callable, Sequence

from ...figures.learning_curves import Axis
from ...figures.theme import SERIES_COLOURS
from ...figures.svg import Point as Spot
from ...figures.svg import figure, number, tag, text_width, tooltip, words
from .figure3 import STATED, Figure, Point, Stated

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP = 640.0, 360.0, 48.0, 40.0, 24.0
_DASHES = (None, "7 4", "2 4", "10 3 2 3", "4 2", "12 4")
_MARKED = (1, 16, 32, 64, 81, 128)  # the paper's marks on the axis of machines, and its 81
Place = Callable[[float, float], Spot]


def figure3_svg(found: Figure, *, standalone: bool = True) -> str:
    """Speed-up against machines, with the machines that are assumed in the description."""
    nets = list(dict.fromkeys(point.task for point in found.points))
    stated = [s for s in STATED if s.task in nets]
    most = max(point.machines for point in found.points)
    top = max([p.speedup for p in found.points] + [s.speedup for s in stated])
    axes = (
        Axis(0.0, float(max(most, 2)), "machines", lambda value: f"{value:.0f}"),
        Axis(0.0, 1.06 * top, "speed-up", lambda value: f"{value:g}"),
    )
    top_y = _TOP + 20 * (len(nets) + 1)

    def place(machines: float, speedup: float) -> Spot:
        x = _LEFT + axes[0].place(machines) * (_WIDTH - _LEFT - _RIGHT)
        return x, top_y + (1 - axes[1].place(speedup)) * _HEIGHT

    body = [_grid(axes, place, most)]
    body += [_net(i, found.of(net), place) for i, net in enumerate(nets)]
    body += [_stated(nets.index(s.task), s, place) for s in stated]
    body += [_key(i, net) for i, net in enumerate(nets)]
    body.append(_key_of_stated(len(nets)))
    caption = place(0, 0)[1] + 62
    body += [words(_LEFT, caption + 16 * i, line, "muted small") for i, line in enumerate(found.assumptions)]
    description = " ".join([*found.assumptions, *(_in_words(found.of(net)) for net in nets)])
    size = (_WIDTH, caption + 16 * len(found.assumptions))
    title = "Speed-up against machines (DistBelief, figure 3)"
    return figure("figure3", title, description, size=size, body="".join(body), standalone=standalone)


def _in_words(points: Sequence[Point]) -> str:
    return f"{points[0].task}: " + ", ".join(f"{p.speedup:.2f} on {p.machines}" for p in points) + "."


def _net(i: int, points: Sequence[Point], place: Place) -> str:
    colour = i % SERIES_COLOURS
    spots = [place(p.machines, p.speedup) for p in points]
    d = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in spots)
    line = tag("path", d=d, cls=f"curve c{colour}", stroke_dasharray=_DASHES[i % len(_DASHES)])
    dots = [
        tag("circle", tooltip(_said(p)), cx=x, cy=y, r=3, cls=f"d{colour}")
        for p, (x, y) in zip(points, spots, strict=True)
    ]
    best = max(points, key=lambda p: p.speedup)
    x, y = place(best.machines, best.speedup)
    label = words(x, y - 8, f"{best.speedup:.1f}", "small strong mid halo")
    return tag("g", line, *dots, label, data_net=points[0].task)


def _said(point: Point) -> str:
    return f"{point.task}, machines {point.machines}: {point.speedup:.2f} ({point.plan})"


def _stated(i: int, stated: Stated, place: Place) -> str:
    """A hollow diamond; with an arrow upwards where the paper says more than that."""
    x, y = place(stated.machines, stated.speedup)
    cls = f"curve c{i % SERIES_COLOURS}"
    more = "more than " if stated.at_least else ""
    text = f"the paper: {stated.task} {more}{stated.speedup:g} times as fast on {stated.machines} machines"
    arrow = tag("path", d=f"M{number(x)} {number(y - 7)}v-10m-4 4l4 -4l4 4", cls=cls) if stated.at_least else ""
    return tag("g", tooltip(text), _diamond(x, y, cls), arrow, data_stated=stated.task)


def _diamond(x: float, y: float, cls: str) -> str:
    return tag("path", d=f"M{number(x)} {number(y - 6)}l6 6l-6 6l-6 -6z", cls=cls)


def _key(i: int, net: str) -> str:
    y = _TOP - 6 + 20 * i
    line = tag(
        "path",
        d=f"M{_LEFT:.0f} {y - 4:.0f}h26",
        cls=f"curve c{i % SERIES_COLOURS}",
        stroke_dasharray=_DASHES[i % len(_DASHES)],
    )
    return line + words(_LEFT + 34, y, net)


def _key_of_stated(rows: int) -> str:
    y = _TOP - 6 + 20 * rows
    said = "as the paper's text says; an arrow: more than that"
    return _diamond(_LEFT + 13, y - 4, "mark") + words(_LEFT + 34, y, said, "muted")


def _grid(axes: tuple[Axis, Axis], place: Place, most: int) -> str:
    across, up = axes
    left, bottom = place(0, 0)
    out = []
    for mark in up.marks():
        y = place(0, mark)[1]
        out.append(tag("path", d=f"M{left:.0f} {y:.1f}H{_WIDTH - _RIGHT:.0f}", cls="rule"))
        out.append(words(left - 8, y + 4, up.show(mark), "muted tiny end"))
    marks = [k for k in _MARKED if k <= most] if most >= _MARKED[1] else range(1, most + 1)
    for k in marks:
        out.append(words(place(k, 0)[0], bottom + 16, across.show(k), "muted tiny mid"))
    out.append(tag("path", d=f"M{left:.0f} {bottom:.1f}H{_WIDTH - _RIGHT:.0f}", cls="axis"))
    middle = (left + _WIDTH - _RIGHT) / 2
    out.append(words(middle - text_width(across.label, 11) / 2, bottom + 36, across.label, "muted small"))
    out.append(words(left - 8, place(0, up.high)[1] - 6, up.label, "muted small"))
    return "".join(out)
