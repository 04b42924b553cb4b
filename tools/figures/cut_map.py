"""The cut map: every operator as a box divided into its machines' territory, and the tensors that cross between."""

from dataclasses import replace

from ...partition.placement.placement_file import Placement
from ..units import format_bytes
from .cut_map_edges import (
    Crossing,
    assign_received,
    collect_crossings,
    describe_crossing,
    format_curve,
    render_crossing,
    render_wire,
)
from .cut_map_layout import (
    LINE_HEIGHT,
    WIDTH,
    MapNode,
    MapScale,
    Seat,
    choose_scale,
    fuse_light_operators,
    group_by_depth,
    is_light,
    measure_node,
    place_nodes,
)
from .cut_map_legend import AxisNames, learn_axis_names, render_legend
from .cut_map_node import OperatorBox, find_anchors, list_labels, render_box
from .cut_map_routing import route_edges
from .svg import Rect, element, fit_text, measure_text, rect, render_figure, text_line, tooltip

NAME = "cut"
_MARGIN = 16.0


def render_cut_map(placement: Placement, *, standalone: bool = True) -> str:
    """Render the map as an SVG. standalone: with its own style and background, as a file has; a page brings them."""
    head, head_height = render_legend(NAME, placement, WIDTH - 2 * _MARGIN, standalone=standalone)
    top = head_height + _MARGIN
    axes = learn_axis_names(placement)
    nodes = fuse_light_operators(placement)
    columns = group_by_depth(nodes)
    heaviest = max((op.flops for op in placement.ops), default=0.0)
    crossed = collect_crossings(placement)
    received = assign_received(nodes, crossed)
    scale = replace(choose_scale(nodes, columns, heaviest), names_received=bool(received))
    seats, rows = place_nodes(nodes, columns, scale, heaviest)
    routes = route_edges(nodes, seats, rows, scale)
    boxes = [
        OperatorBox(
            node,
            _place_frame(seats[i], top + routes.tops[seats[i].row]),
            measure_node(MapNode(node.ops[:1], ()), scale, is_light(node.ops[0], heaviest)),
        )
        for i, node in enumerate(nodes)
    ]
    largest = max((item.total for item in crossed.values()), default=1)
    wires, threads = [], []
    for (source, target), points in routes.paths.items():
        item = crossed.get(nodes[source].ops[-1].name)
        moved = None if points is None else [(x, y + top) for x, y in points]
        if item is None:
            wires.append(render_wire(boxes[source], boxes[target], moved))
        else:
            threads.append(
                render_crossing(boxes[source], boxes[target], item, points=moved, scale=scale, largest=largest)
            )
    marks = [_render_senders(box, crossed, scale, last=not _is_read(i, nodes)) for i, box in enumerate(boxes)]
    body = (
        head
        + "".join(wires)
        + "".join(threads)
        + "".join(render_box(NAME, box, scale, axes) for box in boxes)
        + "".join(marks)
        + "".join(_render_received(boxes[i], items, scale, axes) for i, items in received.items())
    )
    foot, foot_height = _render_total(crossed, received, {op.name for op in placement.ops}, y=top + routes.height)
    return render_figure(
        NAME,
        f"Cut map of {placement.model}",
        describe_cut(placement, crossed),
        size=(WIDTH, top + routes.height + foot_height + 4),
        body=body + foot,
        machines=len(placement.machines),
        standalone=standalone,
    )


def describe_cut(placement: Placement, crossed: dict[str, Crossing]) -> str:
    """Describe the map for those who cannot see it."""
    machines = ", ".join(f"{i} {machine.name}" for i, machine in enumerate(placement.machines))
    text = f"{len(placement.ops)} operators over {len(placement.machines)} machines ({machines}). "
    if not crossed:
        return text + "No tensor crosses between machines."
    worst = max(crossed.values(), key=lambda item: item.total)
    total = sum(item.total for item in crossed.values())
    return text + (
        f"{len(crossed)} tensors cross between machines, {format_bytes(total)} in a forward pass; "
        f"the largest is {worst.tensor} with {format_bytes(worst.total)}."
    )


def _place_frame(place: Seat, top: float) -> Rect:
    return (place.x, top + place.y, place.width, place.height)


def _is_read(index: int, nodes: list[MapNode]) -> bool:
    return any(index in node.inputs for node in nodes)


def _render_senders(box: OperatorBox, crossed: dict[str, Crossing], scale: MapScale, *, last: bool) -> str:
    """Render rings on the tiles that send, and the bytes above the gap. last: whether no box reads this one."""
    item = crossed.get(box.node.ops[-1].name)
    if item is None:
        return ""
    senders = {source for source, _ in item.pairs}
    spots = [spot for machine, spot in sorted(find_anchors(box).items()) if machine in senders]
    crowded = len(spots) * (2 * scale.ring + 2) > 2 * box.frame[3]
    ring_centres = [(box.right, box.middle)] if crowded else spots
    rings = [element("circle", cx=x, cy=y, r=scale.ring, cls="ring") for x, y in ring_centres]
    label = format_bytes(item.total)
    wide = measure_text(label, 10.5) + 14
    x, y = min(box.right + scale.gap / 2, WIDTH - wide / 2 - 2), box.frame[1] - 19
    pill = rect((x - wide / 2, y, wide, 16), "pill", rx=8) + text_line(x, y + 12, label, "pilltext")
    out = format_curve((box.right + 4, box.middle), (x, box.middle))
    stub = element("path", d=out, cls="cross", stroke_width=2) if last else ""
    return element("g", tooltip(describe_crossing(item)), stub, *rings, pill, data_sends=item.tensor)


def _render_received(box: OperatorBox, items: list[Crossing], scale: MapScale, axes: AxisNames) -> str:
    """Render below a box the bytes of parameters that come to it from other machines."""
    label = format_bytes(sum(item.total for item in items))
    x, y = box.frame[0], box.frame[1] + box.frame[3] + 6.5 + LINE_HEIGHT * len(list_labels(box.node, scale, axes))
    pill = rect((x, y, measure_text(label, 10) + 10, 12), "received", rx=6)
    text = text_line(x + 5, y + 9.5, label, "tiny")
    return element("g", tooltip("\n".join(map(describe_crossing, items))), pill, text, cls="receives")


def _render_total(
    crossed: dict[str, Crossing], received: dict[int, list[Crossing]], made: set[str], *, y: float
) -> tuple[str, float]:
    """Render a line on how much of what crosses are parameters. made: names of operators."""
    known = {item.tensor for items in received.values() for item in items} | made
    shown = sum(item.total for items in received.values() for item in items)
    elsewhere = sum(item.total for item in crossed.values() if item.tensor not in known)
    if not shown and not elsewhere:
        return "", 8.0
    words = [f"{format_bytes(shown)} are parameters, shown where they are received"] if shown else []
    words += [f"{format_bytes(elsewhere)} are of what the file does not say who reads it"] if elsewhere else []
    line = f"Of {format_bytes(sum(item.total for item in crossed.values()))} that cross, {', '.join(words)}."
    return text_line(_MARGIN, y + 26, fit_text(line, WIDTH - 2 * _MARGIN), "muted"), 40.0
