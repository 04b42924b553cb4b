"""The cut map: every operator as a box divided into its machines' territory, and the tensors that cross between."""

from ...partition.placement.placement_file import Placement
from .axisname import learn
from .cut_map_node import Box, anchors, draw
from .cut_map_edges import Crossing, crossing, crossing_details, crossings, curve, wire
from .cut_map_layout import WIDTH, Node, Scale, Seat, choose_scale, fuse, is_light, layers, node_width, seat
from .cut_map_routing import route
from .cut_map_legend import legend
from .svg import Rect, figure, fit, rect, tag, text_width, tooltip, words
from ..units import bytes_text

NAME = "cut"
_MARGIN = 16.0


def cut_map(placement: Placement, *, standalone: bool = True) -> str:
    """The map as an SVG. standalone: with its own style and background, as a file; otherwise the page brings them."""
    head, head_height = legend(NAME, placement, WIDTH - 2 * _MARGIN, standalone=standalone)
    top = head_height + _MARGIN
    axes = learn(placement)
    nodes = fuse(placement)
    columns = layers(nodes)
    heaviest = max((op.flops for op in placement.ops), default=0.0)
    scale = choose_scale(nodes, columns, heaviest)
    seats, lines = seat(nodes, columns, scale, heaviest)
    routes = route(nodes, seats, lines, scale)
    boxes = [
        Box(
            node,
            _frame(seats[i], top + routes.tops[seats[i].line]),
            node_width(Node(node.ops[:1], ()), scale, is_light(node.ops[0], heaviest)),
        )
        for i, node in enumerate(nodes)
    ]
    crossed = crossings(placement)
    most = max((item.total for item in crossed.values()), default=1)
    wires, threads = [], []
    for (source, target), points in routes.paths.items():
        item = crossed.get(nodes[source].ops[-1].name)
        moved = None if points is None else [(x, y + top) for x, y in points]
        if item is None:
            wires.append(wire(boxes[source], boxes[target], moved))
        else:
            threads.append(crossing(boxes[source], boxes[target], item, points=moved, scale=scale, most=most))
    marks = [_senders(box, crossed, scale, last=not _is_read(i, nodes)) for i, box in enumerate(boxes)]
    body = (
        head
        + "".join(wires)
        + "".join(threads)
        + "".join(draw(NAME, box, scale, axes) for box in boxes)
        + "".join(marks)
    )
    foot, foot_height = _elsewhere(placement, crossed, y=top + routes.height)
    return figure(
        NAME,
        f"Cut map of {placement.model}",
        describe(placement, crossed),
        size=(WIDTH, top + routes.height + foot_height + 4),
        body=body + foot,
        machines=len(placement.machines),
        standalone=standalone,
    )


def describe(placement: Placement, crossed: dict[str, Crossing]) -> str:
    """The map in words, for those who cannot see it."""
    machines = ", ".join(f"{i} {machine.name}" for i, machine in enumerate(placement.machines))
    text = f"{len(placement.ops)} operators over {len(placement.machines)} machines ({machines}). "
    if not crossed:
        return text + "No tensor crosses between machines."
    worst = max(crossed.values(), key=lambda item: item.total)
    total = sum(item.total for item in crossed.values())
    return text + (
        f"{len(crossed)} tensors cross between machines, {bytes_text(total)} in a forward pass; "
        f"the largest is {worst.tensor} with {bytes_text(worst.total)}."
    )


def _frame(place: Seat, top: float) -> Rect:
    return (place.x, top + place.y, place.width, place.height)


def _is_read(index: int, nodes: list[Node]) -> bool:
    return any(index in node.inputs for node in nodes)


def _senders(box: Box, crossed: dict[str, Crossing], scale: Scale, *, last: bool) -> str:
    """Rings on the tiles that send, and the bytes above the gap they leave by. last: nothing reads the box."""
    item = crossed.get(box.node.ops[-1].name)
    if item is None:
        return ""
    senders = {source for source, _ in item.pairs}
    spots = [spot for machine, spot in sorted(anchors(box).items()) if machine in senders]
    crowded = len(spots) * (2 * scale.ring + 2) > 2 * box.frame[3]
    shown = [(box.right, box.middle)] if crowded else spots
    rings = [tag("circle", cx=x, cy=y, r=scale.ring, cls="ring") for x, y in shown]
    label = bytes_text(item.total)
    wide = text_width(label, 10.5) + 14
    x, y = min(box.right + scale.gap / 2, WIDTH - wide / 2 - 2), box.frame[1] - 19
    pill = rect((x - wide / 2, y, wide, 16), "pill", rx=8) + words(x, y + 12, label, "pilltext")
    out = curve((box.right + 4, box.middle), (x, box.middle))
    stub = tag("path", d=out, cls="cross", stroke_width=2) if last else ""
    return tag("g", tooltip(crossing_details(item)), stub, *rings, pill, data_sends=item.tensor)


def _elsewhere(placement: Placement, crossed: dict[str, Crossing], *, y: float) -> tuple[str, float]:
    """Crossing tensors that are no operator's output: parameters used on several machines."""
    known = {op.name for op in placement.ops}
    rest = [item for name, item in crossed.items() if name not in known]
    if not rest:
        return "", 8.0
    named = ", ".join(f"{item.tensor} {bytes_text(item.total)}" for item in rest)
    line = f"Parameters that cross ({bytes_text(sum(item.total for item in rest))}): {named}"
    body = words(_MARGIN, y + 26, fit(line, WIDTH - 2 * _MARGIN), "muted")
    return tag("g", tooltip("\n".join(crossing_details(item) for item in rest)), body), 40.0
