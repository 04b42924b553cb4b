"""One box of the cut map: a leading operator's territory, the light operators fused to it, and labels."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from ...partition.placement.placement_file import BoxPlacement, OpPlacement
from ..units import format_count, format_percent
from .cut_map_fusing import MapNode, count_node, shorten_name
from .cut_map_layout import LINE_HEIGHT, MapScale
from .cut_map_legend import AxisNames
from .svg import Point, Rect, element, fit_text, fit_text_end, item, measure_text, rect, render_tiles, text_line
from .theme import MACHINE_COLOURS


@dataclass(frozen=True)
class OperatorBox:
    """A node with its place on the page. number: its position; end: the right edge of its column."""

    number: int
    node: MapNode
    frame: Rect
    lead: float
    end: float

    @property
    def right(self) -> float:
        return self.frame[0] + self.frame[2]

    @property
    def middle(self) -> float:
        return self.frame[1] + self.frame[3] / 2


def stack_frames(box: OperatorBox) -> list[tuple[OpPlacement, Rect]]:
    """Return the operators' frames: the leading one, and the fused ones behind it like a stack of cards."""
    x, y, width, height = box.frame
    tail = len(box.node.ops) - 1
    step = (width - box.lead) / tail if tail else 0.0
    inset = min(step / 2, height / 4 / max(tail, 1))
    frames: list[Rect] = [(x + step * i, y + inset * i, box.lead, height - 2 * inset * i) for i in range(tail + 1)]
    return list(zip(box.node.ops, frames, strict=True))


def render_box(name: str, box: OperatorBox, scale: MapScale, axes: AxisNames) -> str:
    """Render the box. name: of the figure, for the hatches."""
    out = []
    for i, (op, frame) in reversed(list(enumerate(stack_frames(box)))):
        land = divide_frame(op, frame)
        shapes = [render_tiles(name, machine, rects, "tile") for machine, rects in land.items()] or [
            rect(frame, "none")
        ]
        if i == 0:
            shapes += [_render_number(machine, max(rects, key=compute_area)) for machine, rects in land.items()]
        copies = [folded[i].name for folded in box.node.copies]
        out.append(item(_describe_operator(op, axes, copies), *shapes, rect(frame, "frame", rx=1), data_op=op.name))
    x, y, _, height = box.frame
    room = box.end - x
    for i, (line, cls) in enumerate(list_labels(box.node, scale, axes)):
        fit = fit_text_end if i == 1 else fit_text
        count = "" if i else count_node(box.node)
        size = 11 if i else 12.5
        shown = fit(line, room - measure_text(count, size), size) + count
        out.append(text_line(x, y + height + 14 + LINE_HEIGHT * i, shown, cls))
    folded_layers = str(len(box.node.copies)) if box.node.copies else None
    return element("g", *out, cls="node", data_node=str(box.number), data_copies=folded_layers)


def lead_frame(box: OperatorBox) -> Rect:
    x, y, _, height = box.frame
    return (x, y, box.lead, height)


def compute_area(frame: Rect) -> float:
    return frame[2] * frame[3]


def _render_number(machine: int, frame: Rect) -> str:
    place = _place_number(machine, frame)
    return text_line(place[0], place[1] + 9, str(machine), f"n{machine % MACHINE_COLOURS} small") if place else ""


def _place_number(machine: int, frame: Rect) -> Rect | None:
    """Return where the number of a machine is in its tile; None where the tile has no room for it."""
    x, y, width, height = frame
    wide = measure_text(str(machine), 12)
    return (x + 5, y + min(height / 2 + 4, 16) - 9, wide, 9) if width >= wide + 11 and height >= 13 else None


def has_room_for_rings(box: OperatorBox, spots: list[Point], radius: float) -> bool:
    """Whether rings at these places leave most of the tiles to be seen, and the numbers of their machines."""
    land = divide_frame(box.node.ops[0], lead_frame(box))
    numbers = [_place_number(machine, max(rects, key=compute_area)) for machine, rects in land.items()]
    covers = any(
        left - radius - 1 < x < left + wide + radius + 1 and top - radius - 1 < y < top + high + radius + 1
        for x, y in spots
        for left, top, wide, high in filter(None, numbers)
    )
    inside = any(x < box.right - 1 for x, _ in spots) and box.lead < 60
    return not covers and not inside and len(spots) * (2 * radius + 2) ** 2 < 0.2 * box.lead * box.frame[3]


def list_labels(node: MapNode, scale: MapScale, axes: AxisNames) -> list[tuple[str, str]]:
    """Return the lines of text under a box, each with its class."""
    first, tail = node.ops[0], node.ops[1:]
    cut = axes.describe_loops(first, find_cut_loops(first))
    where = f"layer {first.module}" if first.module.isdigit() else first.module or first.name
    rows = [(shorten_name(first), "strong"), (where, "muted small")]
    if scale.labels > 2:
        rows.append((f"by {cut}" if cut else "whole", "muted small"))
    if scale.names_fused and tail:
        kinds = Counter(shorten_name(op) for op in tail)
        rows.append(("+ " + ", ".join(k if n == 1 else f"{n} {k}" for k, n in kinds.items()), "muted small"))
    return rows


def _describe_operator(op: OpPlacement, axes: AxisNames, copies: Sequence[str] = ()) -> str:
    loops = " × ".join(f"{axes[loop.axis]} {loop.size}" for loop in op.loops)
    held = ", ".join(f"machine {machine}: {format_percent(part)}" for machine, part in compute_fractions(op).items())
    where = f" in {op.module}" if op.module else ""
    few = [*copies[:3], "…", copies[-1]] if len(copies) > 5 else copies
    alike = f"\nand {len(copies)} more that are alike: {', '.join(few)}" if copies else ""
    return f"{op.name} ({op.op}){where}\n{format_count(op.flops)}FLOP, {loops or 'no loops'}\n{held}{alike}"


def find_anchors(box: OperatorBox) -> dict[int, Point]:
    """Return where each machine sends from: the edge of the box, or of its largest tile if that lies further in."""
    op = box.node.ops[-1]
    x0, _, width, _ = lead_frame(box)
    out = {}
    for machine, rects in divide_frame(op, lead_frame(box)).items():
        x, y, wide, high = max(rects, key=compute_area)
        at_edge = x + wide > x0 + width - 1
        middle = (x + wide / 2 - x0) / width
        out[machine] = (box.right if at_edge else x + max(wide - 9, wide / 2), y + high * (0.25 + 0.5 * middle))
    return out


_MAX_CELLS = 20_000


def find_cut_loops(op: OpPlacement) -> list[int]:
    """Return the positions of the loops along which the operator's boxes differ."""
    return [i for i in range(len(op.loops)) if len({piece.box[i] for piece in op.boxes}) > 1]


def compute_fractions(op: OpPlacement) -> dict[int, float]:
    """Return the fraction of the operator's work on each machine; the fractions add up to one."""
    volumes: dict[int, float] = {}
    for piece in op.boxes:
        volumes[piece.machine] = volumes.get(piece.machine, 0.0) + _compute_volume(piece)
    total = sum(volumes.values())
    even = 1 / max(len(volumes), 1)
    return {machine: volume / total if total else even for machine, volume in sorted(volumes.items())}


def divide_frame(op: OpPlacement, frame: Rect) -> dict[int, list[Rect]]:
    """Divide a frame into the rectangles of each machine: the first cut loop runs down, the second across."""
    loops = _choose_loops(op)
    if len(compute_fractions(op)) <= 1:
        return {piece.machine: [frame] for piece in op.boxes[:1]}
    cut = find_cut_loops(op)
    plain = 0 < len(cut) <= 2 and len({tuple(piece.box) for piece in op.boxes}) == len(op.boxes)
    if plain:
        return _divide_by_pieces(op, loops, frame)
    if len(loops) == 2 and _count_cells(op, loops) <= _MAX_CELLS:
        return _divide_by_cells(op, loops, frame)
    return _divide_by_work(compute_fractions(op), frame)


def _compute_volume(piece: BoxPlacement) -> float:
    return float(prod(max(stop - start, 0) for start, stop in piece.box))


def _choose_loops(op: OpPlacement) -> list[int]:
    """Choose the one or two loops to draw: those with the most cuts, in the order of the nest."""
    cut = find_cut_loops(op)
    return sorted(sorted(cut, key=lambda i: -len({piece.box[i] for piece in op.boxes}))[:2])


def _divide_by_pieces(op: OpPlacement, loops: list[int], frame: Rect) -> dict[int, list[Rect]]:
    out: dict[int, list[Rect]] = {}
    for piece in op.boxes:
        down = _compute_portion(op, piece, loops[0])
        across = _compute_portion(op, piece, loops[1]) if len(loops) > 1 else (0.0, 1.0)
        out.setdefault(piece.machine, []).append(_place_inside(frame, down, across))
    return dict(sorted(out.items()))


def _compute_portion(op: OpPlacement, piece: BoxPlacement, loop: int) -> tuple[float, float]:
    size = max(op.loops[loop].size, 1)
    start, stop = piece.box[loop]
    return start / size, stop / size


def _place_inside(frame: Rect, down: tuple[float, float], across: tuple[float, float]) -> Rect:
    x, y, width, height = frame
    return (x + across[0] * width, y + down[0] * height, (across[1] - across[0]) * width, (down[1] - down[0]) * height)


def _list_edges(op: OpPlacement, loop: int) -> list[int]:
    return sorted({edge for piece in op.boxes for edge in piece.box[loop]})


def _count_cells(op: OpPlacement, loops: list[int]) -> int:
    return len(_list_edges(op, loops[0])) * len(_list_edges(op, loops[1])) * len(op.boxes)


def _divide_by_cells(op: OpPlacement, loops: list[int], frame: Rect) -> dict[int, list[Rect]]:
    """Divide a frame if more loops are cut than can be drawn: machines in one cell get strips of it by their work."""
    out: dict[int, list[Rect]] = {}
    sizes = [max(op.loops[loop].size, 1) for loop in loops]
    for top, bottom in pairwise(_list_edges(op, loops[0])):
        for left, right in pairwise(_list_edges(op, loops[1])):
            weights = _sum_work(op, loops, (top, left))
            total = sum(weights.values())
            at = left / sizes[1]
            for machine, weight in sorted(weights.items()):
                wide = (right - left) / sizes[1] * weight / total
                box = _place_inside(frame, (top / sizes[0], bottom / sizes[0]), (at, at + wide))
                out.setdefault(machine, []).append(box)
                at += wide
    return dict(sorted(out.items()))


def _sum_work(op: OpPlacement, loops: list[int], corner: tuple[int, int]) -> dict[int, float]:
    """Return the work of each machine in the cell whose first corner this is."""
    weights: dict[int, float] = {}
    for piece in op.boxes:
        spans = [piece.box[loop] for loop in loops]
        if all(start <= at < stop for (start, stop), at in zip(spans, corner, strict=True)):
            others = [stop - start for i, (start, stop) in enumerate(piece.box) if i not in loops]
            weights[piece.machine] = weights.get(piece.machine, 0.0) + float(prod(others))
    return weights


def _divide_by_work(parts: dict[int, float], frame: Rect) -> dict[int, list[Rect]]:
    """Divide a frame from top to bottom, each machine by its fraction of the work."""
    out: dict[int, list[Rect]] = {}
    at = 0.0
    for machine, part in parts.items():
        out[machine] = [_place_inside(frame, (at, at + part), (0.0, 1.0))]
        at += part
    return out
