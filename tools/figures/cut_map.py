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
    list_sent,
    render_crossing,
    render_wire,
)
from .cut_map_folding import count_folded, fold_repeats
from .cut_map_fusing import MapNode, fuse_light_operators, is_light
from .cut_map_layout import LINE_HEIGHT, MapScale, Seat, choose_scale, group_by_depth, measure_node, place_nodes
from .cut_map_legend import AxisNames, learn_axis_names, render_legend
from .cut_map_node import OperatorBox, find_anchors, has_room_for_rings, list_labels, render_box
from .cut_map_routing import Routes, route_edges
from .svg import Rect, element, item, measure_text, name_figure, rect, render_figure, text_line, wrap_text

NAME = "cut"
_MARGIN = 16.0


def render_cut_map(
    placement: Placement, *, standalone: bool = True, narrow: bool = False, fold: bool = False, name: str = NAME
) -> str:
    """Render the map as an SVG.

    standalone: with its own style and background, as a file has; a page brings them. narrow: for phones. fold: with
    repeated layers drawn once. name: unique in a page.
    """
    name = name_figure(name, narrow=narrow)
    axes = learn_axis_names(placement)
    crossed = collect_crossings(placement)
    nodes = fuse_light_operators(placement)
    nodes = fold_repeats(nodes, crossed) if fold else nodes
    columns = group_by_depth(nodes)
    heaviest = max((op.flops for op in placement.ops), default=0.0)
    received = assign_received(nodes, crossed)
    scale = choose_scale(nodes, columns, heaviest, narrow=narrow)
    scale = replace(scale, names_received=bool(received))
    margin = 8.0 if narrow else _MARGIN
    head, head_height = render_legend(name, placement, scale.width - 2 * margin, margin=margin, standalone=standalone)
    top = head_height + margin
    seats, rows = place_nodes(nodes, columns, scale, heaviest)
    routes = route_edges(nodes, seats, rows, scale)
    boxes = [
        OperatorBox(
            i,
            node,
            _place_frame(seats[i], top + routes.tops[seats[i].row]),
            measure_node(MapNode(node.ops[:1], ()), scale, is_light(node.ops[0], heaviest)),
            seats[i].end,
        )
        for i, node in enumerate(nodes)
    ]
    marks = [_render_senders(box, crossed, scale, last=not _is_read(i, nodes)) for i, box in enumerate(boxes)]
    body = (
        head
        + _render_edges(boxes, routes, crossed, scale, top)
        + "".join(render_box(name, box, scale, axes) for box in boxes)
        + "".join(marks)
        + "".join(_render_received(boxes[i], items, scale, axes) for i, items in received.items())
    )
    lines = [_describe_total(placement, crossed, received), _describe_folded(nodes)]
    foot, foot_height = _render_lines(lines, margin, top + routes.height, scale.width - 2 * margin)
    return render_figure(
        name,
        f"Cut map of {placement.model}",
        describe_cut(placement, crossed),
        size=(scale.width, top + routes.height + foot_height + 4),
        body=body + foot,
        machines=len(placement.machines),
        standalone=standalone,
    )


def has_repeats(placement: Placement) -> bool:
    """Whether the map has layers that can be folded."""
    return count_folded(fold_repeats(fuse_light_operators(placement), collect_crossings(placement))) > 0


def _render_edges(
    boxes: list[OperatorBox], routes: Routes, crossed: dict[str, Crossing], scale: MapScale, top: float
) -> str:
    """Render what stays on its machines first, and over it what crosses."""
    largest = max((crossing.total for crossing in crossed.values()), default=1)
    wires, threads = [], []
    for (source, target), points in routes.paths.items():
        crossing = crossed.get(boxes[source].node.ops[-1].name)
        moved = None if points is None else [(x, y + top) for x, y in points]
        ends = boxes[source], boxes[target]
        if crossing is None:
            wires.append(render_wire(*ends, moved))
        else:
            threads.append(render_crossing(*ends, crossing, points=moved, scale=scale, largest=largest))
    return "".join(wires) + "".join(threads)


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
    """Render rings on the tiles that send, and the bytes above the box. last: whether no box reads this one."""
    sent = list_sent(box.node, crossed)
    if not sent:
        return ""
    senders = {source for source, _ in sent[0].pairs}
    spots = [spot for machine, spot in sorted(find_anchors(box).items()) if machine in senders]
    ring_centres = spots if has_room_for_rings(box, spots, scale.ring) else [(box.right, box.middle)]
    rings = [element("circle", cx=x, cy=y, r=scale.ring, cls="ring") for x, y in ring_centres]
    total = sum(crossing.total for crossing in sent)
    label = format_bytes(total)
    wide = measure_text(label, 12.5) + 14
    x, y = box.frame[0], box.frame[1] - 21
    pill = rect((x, y, wide, 16), "pill", rx=8) + text_line(x + wide / 2, y + 12, label, "pilltext")
    out = format_curve((box.right + 4, box.middle), (box.right + 18, box.middle))
    stub = element("path", d=out, cls="cross", stroke_width=2) if last else ""
    alike = f"{len(sent)} layers alike send {label}; of the first of them\n" if len(sent) > 1 else ""
    words = alike + describe_crossing(sent[0])
    marks = (stub, *rings, pill)
    return item(words, *marks, data_sends=sent[0].tensor, data_bytes=str(total), data_edge=str(box.number))


def _render_received(box: OperatorBox, items: list[Crossing], scale: MapScale, axes: AxisNames) -> str:
    """Render below a box the bytes of parameters that come to it from other machines."""
    total = sum(crossing.total for crossing in items)
    label = format_bytes(total)
    x, y = box.frame[0], box.frame[1] + box.frame[3] + 6.5 + LINE_HEIGHT * len(list_labels(box.node, scale, axes))
    pill = rect((x, y, measure_text(label, 12) + 12, 14), "received", rx=7)
    text = text_line(x + 6, y + 11, label, "small")
    words = "\n".join(map(describe_crossing, items))
    return item(words, pill, text, cls="receives", data_bytes=str(total))


def _describe_total(placement: Placement, crossed: dict[str, Crossing], received: dict[int, list[Crossing]]) -> str:
    """Say how much of what crosses are parameters."""
    known = {crossing.tensor for items in received.values() for crossing in items} | {op.name for op in placement.ops}
    shown = sum(crossing.total for items in received.values() for crossing in items)
    elsewhere = sum(crossing.total for crossing in crossed.values() if crossing.tensor not in known)
    if not shown and not elsewhere:
        return ""
    words = [f"{format_bytes(shown)} are parameters, shown where they are received"] if shown else []
    words += [f"{format_bytes(elsewhere)} are of what the file does not say who reads it"] if elsewhere else []
    return f"Of {format_bytes(sum(item.total for item in crossed.values()))} that cross, {', '.join(words)}."


def _describe_folded(nodes: list[MapNode]) -> str:
    """Say what is not drawn."""
    count = count_folded(nodes)
    return f"{count} operators of layers that are alike are drawn once: × says how many there are." if count else ""


def _render_lines(lines: list[str], x: float, y: float, width: float) -> tuple[str, float]:
    """Render sentences under the map; return them and their height."""
    wrapped = [part for line in lines if line for part in wrap_text(line, width, 11)]
    texts = [text_line(x, y + 26 + 16 * i, line, "muted small") for i, line in enumerate(wrapped)]
    return "".join(texts), 24.0 + 16 * len(texts) if texts else 8.0
