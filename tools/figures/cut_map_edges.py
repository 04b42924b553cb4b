"""The edges of the cut map: thin wires where data stays on its machines, bold lines and threads where it crosses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from ...partition.placement.placement_file import Placement
from ..units import format_bytes
from .cut_map_layout import MapNode, MapScale
from .cut_map_node import OperatorBox, compute_area, divide_frame, find_anchors, lead_frame
from .svg import Point, element, format_number, tooltip
from .theme import MACHINE_COLOURS

_MAX_PAIRS = 12


@dataclass(frozen=True)
class Crossing:
    """The bytes of one tensor that cross between machines in a forward pass. pairs: bytes by (source, target)."""

    tensor: str
    total: int
    pairs: dict[tuple[int, int], int]


def collect_crossings(placement: Placement) -> dict[str, Crossing]:
    """Return the crossing tensors by name, in the order of the placement."""
    pairs: dict[str, dict[tuple[int, int], int]] = {}
    for item in placement.predicted.traffic:
        counts = pairs.setdefault(item.tensor, {})
        counts[item.source, item.target] = counts.get((item.source, item.target), 0) + item.bytes
    return {tensor: Crossing(tensor, sum(by.values()), by) for tensor, by in pairs.items()}


def assign_received(nodes: Sequence[MapNode], crossed: Mapping[str, Crossing]) -> dict[int, list[Crossing]]:
    """Return what crosses and is no output of an operator, such as parameters, by the first node that reads it."""
    known = {op.name for node in nodes for op in node.ops}
    received: dict[int, list[Crossing]] = {}
    for name, item in crossed.items():
        if name not in known:
            reader = next((i for i, node in enumerate(nodes) for op in node.ops if name in op.reads), None)
            if reader is not None:
                received.setdefault(reader, []).append(item)
    return received


def render_wire(source: OperatorBox, target: OperatorBox, points: list[Point] | None) -> str:
    """Render a tensor that stays on its machines. points: the corners of a far edge."""
    x, y = target.frame[0], target.middle
    if points is None:
        path = format_curve((source.right, source.middle), (x - 5, y))
    else:
        y = points[-1][1]
        path = _format_rounded([*points[:-1], (x - 5, y)])
    return element("path", d=path, cls="wire") + _render_arrow((x - 1, y), "arrow")


def _render_arrow(tip: Point, cls: str, size: float = 3.2) -> str:
    x, y = tip
    start, side = f"M{format_number(x)} {format_number(y)}", f"l{format_number(-2 * size)} {format_number(-size)}"
    d = f"{start}{side}v{format_number(2 * size)}z"
    return element("path", d=d, cls=cls)


def format_curve(start: Point, stop: Point) -> str:
    """Return the path of a curve that leaves and arrives horizontally."""
    (x0, y0), (x1, y1) = start, stop
    bend = (x1 - x0) / 2
    return "M" + "{} {}C{} {} {} {} {} {}".format(
        *(format_number(v) for v in (x0, y0, x0 + bend, y0, x1 - bend, y1, x1, y1))
    )


def _format_rounded(points: list[Point], radius: float = 6) -> str:
    """Return a path of horizontal and vertical parts with round corners."""
    out = [f"M{format_number(points[0][0])} {format_number(points[0][1])}"]
    for (before, here), (_, after) in pairwise(pairwise(points)):
        bend = min(radius, _measure_length(before, here) / 2, _measure_length(here, after) / 2)
        enter, leave = _step_toward(here, before, bend), _step_toward(here, after, bend)
        out.append("L{} {}Q{} {} {} {}".format(*(format_number(v) for v in (*enter, *here, *leave))))
    out.append(f"L{format_number(points[-1][0])} {format_number(points[-1][1])}")
    return "".join(out)


def _measure_length(a: Point, b: Point) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _step_toward(here: Point, there: Point, step: float) -> Point:
    far = _measure_length(here, there)
    part = step / far if far else 0.0
    return (here[0] + (there[0] - here[0]) * part, here[1] + (there[1] - here[1]) * part)


def render_crossing(
    source: OperatorBox,
    target: OperatorBox,
    item: Crossing,
    *,
    points: list[Point] | None,
    scale: MapScale,
    largest: int,
) -> str:
    """Render a crossing tensor: threads from tile to tile if they can be told apart, else one bold line."""
    holders = {piece.machine for piece in target.node.ops[0].boxes}
    if not any(receiver in holders for _, receiver in item.pairs):
        return render_wire(source, target, points)
    if points is None and len(item.pairs) <= scale.pairs:
        lines = _render_threads(source, target, item, largest)
    else:
        weight = 1.5 + 2.5 * sqrt(item.total / max(largest, 1))
        x = target.frame[0]
        y = target.middle if points is None else points[-1][1]
        start = (source.right + 4, source.middle)
        path = format_curve(start, (x - 8, y)) if points is None else _format_rounded([*points[:-1], (x - 8, y)])
        lines = element("path", d=path, cls="cross", stroke_width=weight) + _render_arrow((x - 1, y), "crossend", 5)
    return element("g", tooltip(describe_crossing(item)), lines, cls="crossing", data_tensor=item.tensor)


def _render_threads(source: OperatorBox, target: OperatorBox, item: Crossing, largest: int) -> str:
    """Render one thread for each pair of machines that ends in this box, in the sender's colour."""
    starts = find_anchors(source)
    stops = {
        m: max(rects, key=compute_area) for m, rects in divide_frame(target.node.ops[0], lead_frame(target)).items()
    }
    last = max(sender for sender, _ in item.pairs)
    out = []
    for (sender, receiver), count in sorted(item.pairs.items()):
        if receiver not in stops:
            continue
        _, top, _, height = stops[receiver]
        start = (source.right, starts[sender][1] if sender in starts else source.middle)
        stop = (target.frame[0] - 6, top + height * (0.25 + 0.5 * (sender + 1) / (last + 2)))
        weight = 1.75 + 3 * sqrt(count / max(largest, 1))
        path = format_curve(start, stop)
        out.append(element("path", d=path, cls="casing", stroke_width=weight + 2))
        out.append(element("path", d=path, cls=f"w{sender % MACHINE_COLOURS}", stroke_width=weight))
        out.append(_render_arrow((stop[0] + 5, stop[1]), f"f{sender % MACHINE_COLOURS}", 3.6))
    return "".join(out)


def describe_crossing(item: Crossing) -> str:
    """Name the tensor and its heaviest pairs of machines."""
    heaviest = sorted(item.pairs.items(), key=lambda pair: (-pair[1], pair[0]))
    rows = [f"{source} → {target}: {format_bytes(count)}" for (source, target), count in heaviest[:_MAX_PAIRS]]
    if len(heaviest) > _MAX_PAIRS:
        rows.append(f"and {len(heaviest) - _MAX_PAIRS} more pairs")
    return f"{item.tensor} crosses: {format_bytes(item.total)} forward\n" + "\n".join(rows)
