"""Traffic matrices: bytes from each source (rows) to each target (columns), shaded and in numbers, with sums."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...partition.placement.placement_file import Placement
from .svg import chip, figure, fit, rect, tag, text_width, tooltip, words
from ..units import bytes_text

_SUM = 68.0


def traffic_matrix(placement: Placement, *, standalone: bool = True) -> str:
    """Bytes between machines in a forward pass, as an SVG."""
    names = [machine.name for machine in placement.machines]
    cells: dict[tuple[int, int], int] = {}
    for item in placement.predicted.traffic:
        cells[item.source, item.target] = cells.get((item.source, item.target), 0) + item.bytes
    return _figure("traffic", "Traffic between machines, forward", names, cells, chips=True, standalone=standalone)


def link_matrix(links: Sequence[Mapping[str, Any]], *, standalone: bool = True) -> str:
    """Bytes between processes as measured in a run, as an SVG. links: source, target and bytes of each."""
    names = sorted({str(link[end]) for link in links for end in ("source", "target")})
    place = {name: i for i, name in enumerate(names)}
    cells: dict[tuple[int, int], int] = {}
    for link in links:
        key = place[str(link["source"])], place[str(link["target"])]
        cells[key] = cells.get(key, 0) + int(link["bytes"])
    return _figure("links", "Traffic between processes, measured", names, cells, chips=False, standalone=standalone)


def _figure(
    name: str, title: str, names: list[str], cells: dict[tuple[int, int], int], *, chips: bool, standalone: bool
) -> str:
    count = len(names)
    side = 62.0 if count <= 6 else 50.0 if count <= 10 else 40.0 if count <= 16 else 20.0
    high = min(side, 40.0)
    head = 34.0 if chips else 26.0 + 0.72 * max((text_width(fit(n, 120), 11) for n in names), default=0.0)
    left = 30.0 + max((text_width(fit(n, 130)) for n in names), default=60.0) + (20 if chips else 0)
    top = head + 12
    out = [_row_head(name, label, i, top=top + high * i, high=high, chips=chips) for i, label in enumerate(names)]
    out += [_column_head(name, label, left + side * (i + 0.5), top, i, chips=chips) for i, label in enumerate(names)]
    most = max(cells.values(), default=0)
    for source in range(count):
        for target in range(count):
            box = (left + side * target + 1, top + high * source + 1, side - 2, high - 2)
            label = f"{names[source]} → {names[target]}"
            out.append(_cell(label, cells.get((source, target), 0), most, box, own=source == target))
    out += _sums(names, cells, left=left, top=top, side=side, high=high)
    return figure(
        name,
        title,
        _describe(names, cells),
        size=(left + side * count + _SUM + 12, top + high * (count + 1) + 10),
        body="".join(out),
        machines=count if chips else 0,
        standalone=standalone,
    )


def _row_head(name: str, label: str, i: int, *, top: float, high: float, chips: bool) -> str:
    middle = top + high / 2
    mark = chip(name, 12, middle - 8, i) if chips else ""
    return tag("g", tooltip(label), mark, words(34 if chips else 12, middle + 4, fit(label, 130)))


def _column_head(name: str, label: str, x: float, top: float, i: int, *, chips: bool) -> str:
    if chips:
        return tag("g", tooltip(label), chip(name, x - 8, top - 22, i))
    turned = words(0, 0, fit(label, 120, 11), "small", transform=f"translate({x - 2:.1f} {top - 8:.1f}) rotate(-45)")
    return tag("g", tooltip(label), turned)


def _cell(label: str, count: int, most: int, box: tuple[float, float, float, float], *, own: bool) -> str:
    x, y, width, height = box
    if own or not count:
        dot = "" if own else tag("circle", cx=x + width / 2, cy=y + height / 2, r=1.5, cls="track")
        return (rect(box, "track", rx=3) if own else "") + dot
    share = count / most
    dark = share > 0.5
    opacity = 0.6 + 0.4 * share if dark else 0.1 + 0.7 * share
    shade = tag("rect", x=x, y=y, width=width, height=height, rx=3, cls="heat", fill_opacity=opacity)
    text = bytes_text(count)
    size = 11 if text_width(text, 11) <= width - 4 else 9
    number = ""
    if text_width(text, size) <= width:
        colour = "heatstrong" if dark else ""
        number = words(x + width / 2, y + height / 2 + 4, text, f"mid {colour}".strip(), font_size=str(size))
    return tag("g", tooltip(f"{label}: {bytes_text(count)}"), shade, number)


def _sums(
    names: list[str], cells: dict[tuple[int, int], int], *, left: float, top: float, side: float, high: float
) -> list[str]:
    count = len(names)
    end, foot = left + side * count + _SUM, top + high * count + 16
    out = [words(end, top - 10, "sends", "muted small end"), words(34, foot, "receives", "muted small")]
    for i in range(count):
        sent = sum(value for (source, _), value in cells.items() if source == i)
        got = sum(value for (_, target), value in cells.items() if target == i)
        out.append(words(end, top + high * (i + 0.5) + 4, bytes_text(sent), "end small"))
        if side >= 40:
            out.append(words(left + side * (i + 0.5), foot, bytes_text(got), "mid tiny"))
    out.append(words(end, foot, bytes_text(sum(cells.values())), "end small strong"))
    return out


def _describe(names: list[str], cells: dict[tuple[int, int], int]) -> str:
    if not any(cells.values()):
        return f"Nothing is sent between {len(names)} of them."
    (source, target), count = max(cells.items(), key=lambda cell: (cell[1], cell[0]))
    total = sum(cells.values())
    return f"{bytes_text(total)} in all; the busiest is {names[source]} to {names[target]} with {bytes_text(count)}."
