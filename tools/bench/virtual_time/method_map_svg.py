"""The map of methods as a picture: the faster a method is on a network, the darker its field."""

from ...figures.svg import element, fit_text, item, rect, render_figure, text_line
from ...units import format_seconds
from .method_map import PACES, MapRow, MethodMap
from .time_chart import render_notes

_LEFT, _CELL, _ROW, _TOP, _GAP = 150.0, 88.0, 30.0, 74.0, 16.0


def render_method_map(found: MethodMap, *, standalone: bool = True) -> str:
    """Render a row for each method and a field for each network; the best of a column has a frame."""
    width = _LEFT + len(found.places) * _CELL + _GAP * len(PACES) + 14
    title = f"Simulated time to {found.target:.0%} test accuracy, task {found.task}"
    out = [text_line(14, 22, title, "strong")]
    for number, place in enumerate(found.places):
        x = _find_left(number, found)
        if number % (len(found.places) // len(PACES)) == 0:
            out.append(text_line(x, 46, place[0], "muted"))
        out.append(text_line(x + _CELL / 2, 64, place[1], "small mid"))
    for number, row in enumerate(found.rows):
        out.append(_render_row(found, row, _TOP + number * _ROW))
    notes, bottom = render_notes(found.facts, top=_TOP + len(found.rows) * _ROW + 14, width=width)
    description = " ".join([*found.facts, *(_describe(found, place) for place in found.places)])
    body = "".join([*out, notes])
    return render_figure("methods", title, description, size=(width, bottom), body=body, standalone=standalone)


def _find_left(number: int, found: MethodMap) -> float:
    return _LEFT + number * _CELL + _GAP * (number // (len(found.places) // len(PACES)))


def _render_row(found: MethodMap, row: MapRow, top: float) -> str:
    out = [text_line(14, top + _ROW / 2 + 4, fit_text(row.name, _LEFT - 20))]
    for number, place in enumerate(found.places):
        x, seconds, best = _find_left(number, found), row.seconds[place], found.best_at(place)
        box = (x + 2, top + 2, _CELL - 4, _ROW - 4)
        field = [rect(box, "none", rx=3)]
        if seconds is not None and best is not None:
            opacity = f"{0.45 * (best / seconds) ** 1.5:.2f}"
            field.append(element("g", rect(box, "heat", rx=3), opacity=opacity))
            if seconds == best:
                field.append(rect(box, "mark", rx=3))
        text = "never" if seconds is None else format_seconds(seconds)
        weight = "strong" if seconds is not None and seconds == best else "small"
        field.append(text_line(x + _CELL / 2, top + _ROW / 2 + 4, text, f"{weight} mid"))
        out.append(item(f"{row.name}, {place[1]}, {place[0]}: {text}", *field, data_row=row.name))
    return "".join(out)


def _describe(found: MethodMap, place: tuple[str, str]) -> str:
    best = found.best_at(place)
    names = [row.name for row in found.rows if best is not None and row.seconds[place] == best]
    return f"{place[1]}, {place[0]}: {names[0]} in {format_seconds(best)}." if names else f"{place[1]}: none."
