"""The edges of the cut map: thin wires where data stays on its machines, bold lines and threads where it crosses."""

from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from ...partition.placement.placement_file import Placement
from .cut_map_node import Box, anchors, area, lead_frame
from .cut_map_layout import Scale
from .theme import MACHINE_COLOURS
from .svg import Point, number, tag, tooltip
from .territory import territory
from ..units import bytes_text

_MOST_PAIRS = 12


@dataclass(frozen=True)
class Crossing:
    """The bytes of one tensor that change machines in a forward pass. pairs: bytes per (source, target)."""

    tensor: str
    total: int
    pairs: dict[tuple[int, int], int]


def crossings(placement: Placement) -> dict[str, Crossing]:
    """Crossing tensors by name, in the order of the placement."""
    pairs: dict[str, dict[tuple[int, int], int]] = {}
    for item in placement.predicted.traffic:
        mine = pairs.setdefault(item.tensor, {})
        mine[item.source, item.target] = mine.get((item.source, item.target), 0) + item.bytes
    return {tensor: Crossing(tensor, sum(by.values()), by) for tensor, by in pairs.items()}


def wire(source: Box, target: Box, points: list[Point] | None) -> str:
    """A tensor that stays on its machines. points: the corners of a far edge."""
    x, y = target.frame[0], target.middle
    if points is None:
        path = curve((source.right, source.middle), (x - 5, y))
    else:
        y = points[-1][1]
        path = _rounded([*points[:-1], (x - 5, y)])
    return tag("path", d=path, cls="wire") + _arrow((x - 1, y), "arrow")


def _arrow(tip: Point, cls: str, size: float = 3.2) -> str:
    x, y = tip
    d = f"M{number(x)} {number(y)}l{number(-2 * size)} {number(-size)}v{number(2 * size)}z"
    return tag("path", d=d, cls=cls)


def curve(start: Point, stop: Point) -> str:
    """A path that leaves and arrives level."""
    (x0, y0), (x1, y1) = start, stop
    bend = (x1 - x0) / 2
    return "M" + "{} {}C{} {} {} {} {} {}".format(*(number(v) for v in (x0, y0, x0 + bend, y0, x1 - bend, y1, x1, y1)))


def _rounded(points: list[Point], radius: float = 6) -> str:
    """A path of level and upright parts with round corners."""
    out = [f"M{number(points[0][0])} {number(points[0][1])}"]
    for (before, here), (_, after) in pairwise(pairwise(points)):
        bend = min(radius, _length(before, here) / 2, _length(here, after) / 2)
        enter, leave = _toward(here, before, bend), _toward(here, after, bend)
        out.append("L{} {}Q{} {} {} {}".format(*(number(v) for v in (*enter, *here, *leave))))
    out.append(f"L{number(points[-1][0])} {number(points[-1][1])}")
    return "".join(out)


def _length(a: Point, b: Point) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _toward(here: Point, there: Point, step: float) -> Point:
    far = _length(here, there)
    part = step / far if far else 0.0
    return (here[0] + (there[0] - here[0]) * part, here[1] + (there[1] - here[1]) * part)


def crossing(source: Box, target: Box, item: Crossing, *, points: list[Point] | None, scale: Scale, most: int) -> str:
    """A tensor that changes machines: threads from tile to tile where they can be told apart, else one bold line."""
    holders = {piece.machine for piece in target.node.ops[0].boxes}
    if not any(receiver in holders for _, receiver in item.pairs):
        return wire(source, target, points)
    if points is None and len(item.pairs) <= scale.pairs:
        drawn = _threads(source, target, item, most)
    else:
        weight = 1.5 + 2.5 * sqrt(item.total / max(most, 1))
        x = target.frame[0]
        y = target.middle if points is None else points[-1][1]
        start = (source.right + 4, source.middle)
        path = curve(start, (x - 8, y)) if points is None else _rounded([*points[:-1], (x - 8, y)])
        drawn = tag("path", d=path, cls="cross", stroke_width=weight) + _arrow((x - 1, y), "crossend", 5)
    return tag("g", tooltip(crossing_details(item)), drawn, cls="crossing", data_tensor=item.tensor)


def _threads(source: Box, target: Box, item: Crossing, most: int) -> str:
    """One thread a pair of machines that ends in this box, from tile to tile, in the sender's colour."""
    starts = anchors(source)
    stops = {m: max(rects, key=area) for m, rects in territory(target.node.ops[0], lead_frame(target)).items()}
    last = max(sender for sender, _ in item.pairs)
    out = []
    for (sender, receiver), count in sorted(item.pairs.items()):
        if receiver not in stops:
            continue
        _, top, _, height = stops[receiver]
        start = (source.right, starts[sender][1] if sender in starts else source.middle)
        stop = (target.frame[0] - 6, top + height * (0.25 + 0.5 * (sender + 1) / (last + 2)))
        weight = 1.75 + 3 * sqrt(count / max(most, 1))
        path = curve(start, stop)
        out.append(tag("path", d=path, cls="casing", stroke_width=weight + 2))
        out.append(tag("path", d=path, cls=f"w{sender % MACHINE_COLOURS}", stroke_width=weight))
        out.append(_arrow((stop[0] + 5, stop[1]), f"f{sender % MACHINE_COLOURS}", 3.6))
    return "".join(out)


def crossing_details(item: Crossing) -> str:
    """The tensor and its heaviest pairs of machines in words."""
    heaviest = sorted(item.pairs.items(), key=lambda pair: (-pair[1], pair[0]))
    rows = [f"{source} → {target}: {bytes_text(count)}" for (source, target), count in heaviest[:_MOST_PAIRS]]
    if len(heaviest) > _MOST_PAIRS:
        rows.append(f"and {len(heaviest) - _MOST_PAIRS} more pairs")
    return f"{item.tensor} crosses: {bytes_text(item.total)} forward\n" + "\n".join(rows)
