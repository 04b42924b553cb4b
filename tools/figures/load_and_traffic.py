"""The load of machines as bars, and who sends how many bytes to whom as a matrix (rows send, columns receive)."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...partition.placement.placement_file import MachinePlacement, Placement
from ..units import format_bytes, format_count, format_percent, format_seconds
from .svg import element, fit_text, measure_text, rect, render_chip, render_figure, render_tiles, text_line, tooltip

_SUM_WIDTH = 68.0


def render_traffic_matrix(placement: Placement, *, standalone: bool = True) -> str:
    """Render the bytes between machines in a forward pass."""
    names = [machine.name for machine in placement.machines]
    cells: dict[tuple[int, int], int] = {}
    for item in placement.predicted.traffic:
        cells[item.source, item.target] = cells.get((item.source, item.target), 0) + item.bytes
    return _render_matrix(
        "traffic", "Traffic between machines, forward", names, cells, chips=True, standalone=standalone
    )


def render_link_matrix(links: Sequence[Mapping[str, Any]], *, standalone: bool = True) -> str:
    """Render the bytes between processes as measured in a run. links: source, target and bytes of each."""
    names = sorted({str(link[end]) for link in links for end in ("source", "target")})
    place = {name: i for i, name in enumerate(names)}
    cells: dict[tuple[int, int], int] = {}
    for link in links:
        key = place[str(link["source"])], place[str(link["target"])]
        cells[key] = cells.get(key, 0) + int(link["bytes"])
    return _render_matrix(
        "links", "Traffic between processes, measured", names, cells, chips=False, standalone=standalone
    )


def _render_matrix(
    name: str, title: str, names: list[str], cells: dict[tuple[int, int], int], *, chips: bool, standalone: bool
) -> str:
    count = len(names)
    side = 62.0 if count <= 6 else 50.0 if count <= 10 else 40.0 if count <= 16 else 20.0
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
    size = 11 if measure_text(text, 11) <= width - 4 else 9
    number = ""
    if measure_text(text, size) <= width:
        colour = "heatstrong" if dark else ""
        number = text_line(x + width / 2, y + height / 2 + 4, text, f"mid {colour}".strip(), font_size=str(size))
    return element("g", tooltip(f"{label}: {format_bytes(count)}"), shade, number)


def _render_sums(
    names: list[str], cells: dict[tuple[int, int], int], *, left: float, top: float, side: float, high: float
) -> list[str]:
    count = len(names)
    end, foot = left + side * count + _SUM_WIDTH, top + high * count + 16
    out = [text_line(end, top - 10, "sends", "muted small end"), text_line(34, foot, "receives", "muted small")]
    for i in range(count):
        sent = sum(value for (source, _), value in cells.items() if source == i)
        got = sum(value for (_, target), value in cells.items() if target == i)
        out.append(text_line(end, top + high * (i + 0.5) + 4, format_bytes(sent), "end small"))
        if side >= 40:
            out.append(text_line(left + side * (i + 0.5), foot, format_bytes(got), "mid tiny"))
    out.append(text_line(end, foot, format_bytes(sum(cells.values())), "end small strong"))
    return out


def _describe_traffic(names: list[str], cells: dict[tuple[int, int], int]) -> str:
    if not any(cells.values()):
        return f"Nothing is sent among these {len(names)}."
    (source, target), count = max(cells.items(), key=lambda cell: (cell[1], cell[0]))
    total = sum(cells.values())
    return (
        f"{format_bytes(total)} in all; the busiest is {names[source]} to {names[target]} with {format_bytes(count)}."
    )


NAME = "load"
_BAR_WIDTH, _GAP, _ROW, _TOP = 148.0, 24.0, 40.0, 40.0


def render_load_bars(placement: Placement, *, standalone: bool = True) -> str:
    """Render FLOPs, busy seconds and memory of every machine."""
    machines = placement.machines
    total = sum(machine.flops for machine in machines) or 1.0
    largest = max((machine.flops for machine in machines), default=0.0) or 1.0
    step = max(placement.predicted.step_s, *(machine.busy_s for machine in machines), 1e-12)
    left = 46.0 + max((measure_text(fit_text(m.name, 130)) for m in machines), default=0.0)
    starts = [left + (_BAR_WIDTH + _GAP) * i for i in range(3)]
    heads = ("work", "busy in a step", "memory")
    out = [text_line(x, 22, label, "muted small") for x, label in zip(starts, heads, strict=True)]
    for i, machine in enumerate(machines):
        y = _TOP + _ROW * i
        name = text_line(34, y + 16, fit_text(machine.name, 130))
        used = machine.memory_used_bytes / machine.memory_bytes if machine.memory_bytes else 0.0
        label = f"{format_bytes(machine.memory_used_bytes)} of {format_bytes(machine.memory_bytes)}"
        row = (
            _render_bar(
                i,
                starts[0],
                y,
                machine.flops / largest,
                f"{format_count(machine.flops)}FLOP",
                format_percent(machine.flops / total),
            ),
            _render_bar(
                i,
                starts[1],
                y,
                machine.busy_s / step,
                format_seconds(machine.busy_s),
                format_percent(machine.busy_s / step),
            ),
            _render_bar(i, starts[2], y, used, label, format_percent(used)),
        )
        out.append(element("g", tooltip(_describe_machine(machine)), render_chip(NAME, 12, y + 4, i), name, *row))
    return render_figure(
        NAME,
        "Load of the machines",
        _describe_loads(placement),
        size=(starts[2] + _BAR_WIDTH + 16, _TOP + _ROW * len(machines) + 4),
        body="".join(out),
        machines=len(machines),
        standalone=standalone,
    )


def _render_bar(machine: int, x: float, y: float, share: float, value: str, part: str) -> str:
    """Render a bar on its track, the value above its start and the fraction above its end; over the limit in red."""
    over = share > 1.0 + 1e-9
    texts = text_line(x, y + 10, value, "small") + text_line(
        x + _BAR_WIDTH, y + 10, part, f"end small {'bad strong' if over else 'muted'}"
    )
    if over:
        texts = text_line(x, y + 10, value, "small bad strong") + text_line(
            x + _BAR_WIDTH, y + 10, "over", "end small bad strong"
        )
    track = rect((x, y + 16, _BAR_WIDTH, 9), "track", rx=2)
    wide = _BAR_WIDTH * min(max(share, 0.0), 1.0)
    mark = element("path", d=f"M{x + _BAR_WIDTH:.1f} {y + 13:.1f}v15", cls="mark") if over else ""
    return texts + track + render_tiles(NAME, machine, [(x, y + 16, wide, 9)]) + mark


def _describe_machine(machine: MachinePlacement) -> str:
    return (
        f"{machine.name}: {format_count(machine.flops)}FLOP a step at {format_count(machine.flops_per_s)}FLOP/s, "
        f"busy {format_seconds(machine.busy_s)}; {format_bytes(machine.memory_used_bytes)} of "
        f"{format_bytes(machine.memory_bytes)}; {machine.parameters} parameters"
    )


def _describe_loads(placement: Placement) -> str:
    return " ".join(_describe_machine(machine) + "." for machine in placement.machines)
