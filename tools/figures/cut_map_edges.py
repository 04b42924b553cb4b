"""The edges of the cut map: thin wires where data stays on its machines, bold lines and threads where it crosses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from ...partition.placement.placement_file import Placement
from ..units import format_bytes
from .cut_map_fusing import MapNode
from .cut_map_layout import MapScale
from .cut_map_node import OperatorBox, compute_area, divide_frame, find_anchors, lead_frame
from .svg import Point, element, format_number, item
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
    for sent in placement.predicted.traffic:
        counts = pairs.setdefault(sent.tensor, {})
        counts[sent.source, sent.target] = counts.get((sent.source, sent.target), 0) + sent.bytes
    return {tensor: Crossing(tensor, sum(by.values()), by) for tensor, by in pairs.items()}


def assign_received(nodes: Sequence[MapNode], crossed: Mapping[str, Crossing]) -> dict[int, list[Crossing]]:
    """Return what crosses and is no output of an operator, such as parameters, by the first node that reads it."""
    known = {op.name for node in nodes for op in node.list_all()}
    readers: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for op in node.list_all():
            for name in op.reads:
                readers.setdefault(name, i)
    received: dict[int, list[Crossing]] = {}
    for name, crossing in crossed.items():
        if name not in known and name in readers:
            received.setdefault(readers[name], []).append(crossing)
    return received


def list_sent(node: MapNode, crossed: Mapping[str, Crossing]) -> list[Crossing]:
    """Return what crosses of a node's output, and of those of the layers that are folded into it."""
    return [crossed[ops[-1].name] for ops in (node.ops, *node.copies) if ops[-1].name in crossed]


def render_wire(source: OperatorBox, target: OperatorBox, points: list[Point] | None) -> str:
    """Render a tensor that stays on its machines. points: the corners of a far edge."""
    x, y = target.frame[0], target.middle
    if points is None:
        path = format_curve((source.right, source.middle), (x - 5, y), bend_from=source.end)
    else:
        y = points[-1][1]
        path = _format_rounded([*points[:-1], (x - 5, y)])
    edge = f"{source.number} {target.number}"
    return element("path", d=path, cls="wire", data_edge=edge) + _render_arrow((x - 1, y), "arrow")


def _render_arrow(tip: Point, cls: str, size: float = 3.2) -> str:
    x, y = tip
    start, side = f"M{format_number(x)} {format_number(y)}", f"l{format_number(-2 * size)} {format_number(-size)}"
    d = f"{start}{side}v{format_number(2 * size)}z"
    return element("path", d=d, cls=cls)


def format_curve(start: Point, stop: Point, *, bend_from: float = 0.0) -> str:
    """Return the path of a curve that leaves and arrives horizontally. bend_from: x up to which it is straight."""
    (x0, y0), (x1, y1) = start, stop
    x = min(max(x0, bend_from), x1)
    bend = (x1 - x) / 2
    return "M{} {}H{}C{} {} {} {} {} {}".format(*map(format_number, (x0, y0, x, x + bend, y0, x1 - bend, y1, x1, y1)))


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
    crossing: Crossing,
    *,
    points: list[Point] | None,
    scale: MapScale,
    largest: int,
) -> str:
    """Render a crossing tensor: threads from tile to tile if they can be told apart, else one bold line."""
    holders = {piece.machine for piece in target.node.ops[0].boxes}
    if not any(receiver in holders for _, receiver in crossing.pairs):
        return render_wire(source, target, points)
    if points is None and len(crossing.pairs) <= scale.pairs:
        lines = _render_threads(source, target, crossing, largest)
    else:
        weight = 1.5 + 2.5 * sqrt(crossing.total / max(largest, 1))
        x = target.frame[0]
        y = target.middle if points is None else points[-1][1]
        start = (source.right + 4, source.middle)
        path = (
            format_curve(start, (x - 8, y), bend_from=source.end)
            if points is None
            else _format_rounded([*points[:-1], (x - 8, y)])
        )
        lines = element("path", d=path, cls="cross", stroke_width=weight) + _render_arrow((x - 1, y), "crossend", 5)
    edge = f"{source.number} {target.number}"
    return item(describe_crossing(crossing), lines, cls="crossing", data_tensor=crossing.tensor, data_edge=edge)


def _render_threads(source: OperatorBox, target: OperatorBox, crossing: Crossing, largest: int) -> str:
    """Render one thread for each pair of machines that ends in this box, in the sender's colour."""
    starts = find_anchors(source)
    stops = {
        m: max(rects, key=compute_area) for m, rects in divide_frame(target.node.ops[0], lead_frame(target)).items()
    }
    last = max(sender for sender, _ in crossing.pairs)
    out = []
    for (sender, receiver), count in sorted(crossing.pairs.items()):
        if receiver not in stops:
            continue
        _, top, _, height = stops[receiver]
        start = (source.right, starts[sender][1] if sender in starts else source.middle)
        stop = (target.frame[0] - 6, top + height * (0.25 + 0.5 * (sender + 1) / (last + 2)))
        weight = 1.75 + 3 * sqrt(count / max(largest, 1))
        path = format_curve(start, stop, bend_from=source.end)
        out.append(element("path", d=path, cls="casing", stroke_width=weight + 2))
        out.append(element("path", d=path, cls=f"w{sender % MACHINE_COLOURS}", stroke_width=weight))
        out.append(_render_arrow((stop[0] + 5, stop[1]), f"f{sender % MACHINE_COLOURS}", 3.6))
    return "".join(out)


def describe_crossing(crossing: Crossing) -> str:
    """Name the tensor and its heaviest pairs of machines."""
    heaviest = sorted(crossing.pairs.items(), key=lambda pair: (-pair[1], pair[0]))
    rows = [f"{source} → {target}: {format_bytes(count)}" for (source, target), count in heaviest[:_MAX_PAIRS]]
    if len(heaviest) > _MAX_PAIRS:
        rows.append(f"and {len(heaviest) - _MAX_PAIRS} more pairs")
    return f"{crossing.tensor} crosses: {format_bytes(crossing.total)} forward\n" + "\n".join(rows)
