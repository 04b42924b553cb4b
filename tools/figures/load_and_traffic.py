"""The load of machines as bars, and who sends how many bytes to whom as a matrix (rows send, columns receive)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...partition.placement.placement_file import MachinePlacement, Placement
from ..units import format_bytes, format_count, format_percent, format_seconds
from .svg import (
    element,
    fit_text,
    item,
    measure_text,
    name_figure,
    rect,
    render_chip,
    render_figure,
    render_tiles,
    text_line,
    tooltip,
)

_SUM_WIDTH = 76.0
_MANY = 16  # up to so many, cells have the room for numbers
_LISTED = 16  # links that the form for phones has each a bar of


def render_traffic_matrix(placement: Placement, *, standalone: bool = True, narrow: bool = False) -> str:
    """Render the bytes between machines in a forward pass."""
    names = [machine.name for machine in placement.machines]
    cells: dict[tuple[int, int], int] = {}
    for sent in placement.predicted.traffic:
        cells[sent.source, sent.target] = cells.get((sent.source, sent.target), 0) + sent.bytes
    title, figure = "Traffic between machines, forward", name_figure("traffic", narrow=narrow)
    if narrow:
        return _render_list(figure, title, names, cells, standalone=standalone)
    return _render_matrix(figure, title, names, cells, chips=True, standalone=standalone)


def render_link_matrix(links: Sequence[Mapping[str, Any]], *, standalone: bool = True, narrow: bool = False) -> str:
    """Render the bytes between processes as measured in a run. links: source, target and bytes of each."""
    names = sorted({str(link[end]) for link in links for end in ("source", "target")})
    place = {name: i for i, name in enumerate(names)}
    cells: dict[tuple[int, int], int] = {}
    for link in links:
        key = place[str(link["source"])], place[str(link["target"])]
        cells[key] = cells.get(key, 0) + int(link["bytes"])
    title, figure = "Traffic between processes, measured", name_figure("links", narrow=narrow)
    if narrow:
        return _render_list(figure, title, names, cells, standalone=standalone)
    return _render_matrix(figure, title, names, cells, chips=False, standalone=standalone)


def _render_list(
    name: str, title: str, names: list[str], cells: Mapping[tuple[int, int], int], *, standalone: bool
) -> str:
    """Render a bar for each link, the busiest first, and a line with the sum of those that have none."""
    by_bytes = sorted(((count, key) for key, count in cells.items() if count), key=lambda one: (-one[0], one[1]))
    out, width, high = [], 320.0, 36.0
    for row, (count, (source, target)) in enumerate(by_bytes[:_LISTED]):
        label, y, share = f"{names[source]} → {names[target]}", high * row, count / by_bytes[0][0]
        bar = rect((8, y + 20, (width - 16) * share, 7), "heat", rx=2)
        texts = text_line(8, y + 14, fit_text(label, 220, 12)) + text_line(
            width - 8, y + 14, format_bytes(count), "end"
        )
        out.append(item(f"{label}: {format_bytes(count)}", texts, rect((8, y + 20, width - 16, 7), "track", rx=2), bar))
    others = by_bytes[_LISTED:]
    rest = f"{format_count(len(others))} others: {format_bytes(sum(count for count, _ in others))}; " if others else ""
    foot = high * len(out) + 16
    out.append(text_line(8, foot, f"{rest}in all {format_bytes(sum(cells.values()))}", "muted small"))
    described = _describe_traffic(names, cells)
    return render_figure(name, title, described, size=(width, foot + 8), body="".join(out), standalone=standalone)


def _render_matrix(
    name: str, title: str, names: list[str], cells: dict[tuple[int, int], int], *, chips: bool, standalone: bool
) -> str:
    count = len(names)
    labels = map(format_bytes, (*_sum_columns(count, cells), *cells.values()))
    widest = max((measure_text(label, 11) for label in labels), default=0.0)
    side = max(62.0 if count <= 6 else 50.0 if count <= 10 else 40.0, widest + 6) if count <= _MANY else 20.0
    high = min(side, 40.0)
    head = 34.0 if chips else 26.0 + 0.72 * max((measure_text(fit_text(n, 120), 11) for n in names), default=0.0)
    left = 30.0 + max((measure_text(fit_text(n, 130)) for n in names), default=60.0) + (20 if chips else 0)
    top = head + 12
    out = [
        _render_row_head(name, label, i, top=top + high * i, high=high, chips=chips) for i, label in enumerate(names)
    ]
    out += [
        _render_column_head(name, label, left + side * (i + 0.5), top, i, chips=chips) for i, label in enumerate(names)
    ]
    largest = max(cells.values(), default=0)
    for source in range(count):
        for target in range(count):
            box = (left + side * target + 1, top + high * source + 1, side - 2, high - 2)
            label = f"{names[source]} → {names[target]}"
            out.append(_render_cell(label, cells.get((source, target), 0), largest, box, own=source == target))
    out += _render_sums(names, cells, left=left, top=top, side=side, high=high)
    return render_figure(
        name,
        title,
        _describe_traffic(names, cells),
        size=(left + side * count + _SUM_WIDTH + 12, top + high * (count + 1) + 10),
        body="".join(out),
        machines=count if chips else 0,
        standalone=standalone,
    )


def _sum_columns(count: int, cells: Mapping[tuple[int, int], int]) -> list[int]:
    """Return what each receives."""
    return [sum(value for (_, target), value in cells.items() if target == i) for i in range(count)]


def _render_row_head(name: str, label: str, i: int, *, top: float, high: float, chips: bool) -> str:
    middle = top + high / 2
    mark = render_chip(name, 12, middle - 8, i) if chips else ""
    return element("g", tooltip(label), mark, text_line(34 if chips else 12, middle + 4, fit_text(label, 130)))


def _render_column_head(name: str, label: str, x: float, top: float, i: int, *, chips: bool) -> str:
    if chips:
        return element("g", tooltip(label), render_chip(name, x - 8, top - 22, i))
    turned = text_line(
        0, 0, fit_text(label, 120, 11), "small", transform=f"translate({x - 2:.1f} {top - 8:.1f}) rotate(-45)"
    )
    return element("g", tooltip(label), turned)


def _render_cell(label: str, count: int, largest: int, box: tuple[float, float, float, float], *, own: bool) -> str:
    x, y, width, height = box
    if own or not count:
        dot = "" if own else element("circle", cx=x + width / 2, cy=y + height / 2, r=1.5, cls="track")
        return (rect(box, "track", rx=3) if own else "") + dot
    share = count / largest
    dark = share > 0.5
    opacity = 0.6 + 0.4 * share if dark else 0.1 + 0.7 * share
    shade = element("rect", x=x, y=y, width=width, height=height, rx=3, cls="heat", fill_opacity=opacity)
    text = format_bytes(count)
    number = ""
    if measure_text(text, 11) <= width:
        colour = "small mid heatstrong" if dark else "small mid"
        number = text_line(x + width / 2, y + height / 2 + 4, text, colour)
    return item(f"{label}: {format_bytes(count)}", shade, number)


def _render_sums(
    names: list[str], cells: dict[tuple[int, int], int], *, left: float, top: float, side: float, high: float
) -> list[str]:
    count = len(names)
    end, foot = left + side * count + _SUM_WIDTH, top + high * count + 16
    out = [text_line(end, top - 10, "sends", "muted small end"), text_line(34, foot, "receives", "muted small")]
    for i, got in enumerate(_sum_columns(count, cells)):
        sent = sum(value for (source, _), value in cells.items() if source == i)
        out.append(text_line(end, top + high * (i + 0.5) + 4, format_bytes(sent), "end small"))
        if side >= 40:
            out.append(text_line(left + side * (i + 0.5), foot, format_bytes(got), "mid small"))
    out.append(text_line(end, foot, format_bytes(sum(cells.values())), "end small strong"))
    return out


def _describe_traffic(names: list[str], cells: Mapping[tuple[int, int], int]) -> str:
    if not any(cells.values()):
        return f"Nothing is sent among these {len(names)}."
    (source, target), count = max(cells.items(), key=lambda cell: (cell[1], cell[0]))
    total = sum(cells.values())
    return (
        f"{format_bytes(total)} in all; the busiest is {names[source]} to {names[target]} with {format_bytes(count)}."
    )


NAME = "load"
_HEADS = ("work", "busy in a step", "memory")


@dataclass(frozen=True)
class _BarLayout:
    """Where bars are: beside each other after the name, or on phones one under the other below it."""

    starts: tuple[tuple[float, float], ...]
    bar: float
    row: float
    top: float
    width: float


def _lay_out_bars(machines: Sequence[MachinePlacement], *, narrow: bool) -> _BarLayout:
    if narrow:
        return _BarLayout(tuple((8.0, 24.0 + 32 * i) for i in range(3)), 304.0, 130.0, 8.0, 320.0)
    left = 46.0 + max((measure_text(fit_text(m.name, 130)) for m in machines), default=0.0)
    bar = (1120.0 - left) / 3 - 24
    return _BarLayout(tuple((left + (bar + 24) * i, 0.0) for i in range(3)), bar, 40.0, 40.0, 1120.0)


def render_load_bars(placement: Placement, *, standalone: bool = True, narrow: bool = False) -> str:
    """Render FLOPs, busy seconds and memory of every machine."""
    figure, machines = name_figure(NAME, narrow=narrow), placement.machines
    total = sum(machine.flops for machine in machines) or 1.0
    largest = max((machine.flops for machine in machines), default=0.0) or 1.0
    step = max(placement.predicted.step_s, *(machine.busy_s for machine in machines), 1e-12)
    layout = _lay_out_bars(machines, narrow=narrow)
    heads = zip(layout.starts, _HEADS, strict=True)
    out = [] if narrow else [text_line(x, 22, label, "muted small") for (x, _), label in heads]
    for i, machine in enumerate(machines):
        y = layout.top + layout.row * i
        name = text_line(30, y + 16, fit_text(machine.name, 130))
        used = machine.memory_used_bytes / machine.memory_bytes if machine.memory_bytes else 0.0
        values = (
            (f"{format_count(machine.flops)}FLOP", machine.flops / largest, machine.flops / total),
            (format_seconds(machine.busy_s), machine.busy_s / step, machine.busy_s / step),
            (f"{format_bytes(machine.memory_used_bytes)} of {format_bytes(machine.memory_bytes)}", used, used),
        )
        row = [
            _render_bar(figure, i, (x, y + down, layout.bar), share, f"{head}: {value}" if narrow else value, part)
            for (x, down), head, (value, share, part) in zip(layout.starts, _HEADS, values, strict=True)
        ]
        out.append(item(_describe_machine(machine), render_chip(figure, 8, y + 4, i), name, *row))
    return render_figure(
        figure,
        "Load of the machines",
        _describe_loads(placement),
        size=(layout.width, layout.top + layout.row * len(machines) + 4),
        body="".join(out),
        machines=len(machines),
        standalone=standalone,
    )


def _render_bar(
    figure: str, machine: int, place: tuple[float, float, float], share: float, value: str, part: float
) -> str:
    """Render a bar on its track, the value above its start and the fraction above its end; over the limit in red.

    place: x, y and width.
    """
    x, y, width = place
    over = share > 1.0 + 1e-9
    strong = "bad strong" if over else "muted"
    texts = text_line(x, y + 10, value, "small bad strong" if over else "small")
    texts += text_line(x + width, y + 10, "over" if over else format_percent(part), f"end small {strong}")
    track = rect((x, y + 16, width, 9), "track", rx=2)
    wide = width * min(max(share, 0.0), 1.0)
    mark = element("path", d=f"M{x + width:.1f} {y + 13:.1f}v15", cls="mark") if over else ""
    return texts + track + render_tiles(figure, machine, [(x, y + 16, wide, 9)]) + mark


def _describe_machine(machine: MachinePlacement) -> str:
    return (
        f"{machine.name}: {format_count(machine.flops)}FLOP a step at {format_count(machine.flops_per_s)}FLOP/s, "
        f"busy {format_seconds(machine.busy_s)}; {format_bytes(machine.memory_used_bytes)} of "
        f"{format_bytes(machine.memory_bytes)}; {machine.parameters} parameters"
    )


def _describe_loads(placement: Placement) -> str:
    return " ".join(_describe_machine(machine) + "." for machine in placement.machines)
