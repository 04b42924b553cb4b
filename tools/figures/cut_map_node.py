"""One box of the cut map: a leading operator's territory, the light operators fused to it, and labels."""

from dataclasses import dataclass

from ...partition.placement.placement_file import OpPlacement
from .axisname import AxisNames
from .cut_map_layout import LINE_HEIGHT, Node, Scale
from .theme import MACHINE_COLOURS
from .svg import Point, Rect, fit, fit_end, rect, tag, tiles, tooltip, words
from .territory import cut_loops, shares, territory
from ..units import count_text, percent_text

_LIBRARY = frozenset(("aten", "torch", "ops", "default", "Tensor", "Scalar", "int", "dim", "using_ints"))
_SHORT = {
    "scaled_dot_product_attention": "attention",
    "cross_entropy_loss": "cross entropy",
    "layer_norm": "norm",
    "native_layer_norm": "norm",
    "batch_norm": "norm",
    "max_pool2d_with_indices": "max_pool2d",
}


@dataclass(frozen=True)
class Box:
    """A node with its place on the page."""

    node: Node
    frame: Rect
    lead: float

    @property
    def right(self) -> float:
        return self.frame[0] + self.frame[2]

    @property
    def middle(self) -> float:
        return self.frame[1] + self.frame[3] / 2


def sheets(box: Box) -> list[tuple[OpPlacement, Rect]]:
    """The leading operator's frame, and those of the fused ones, which stand out behind it like a stack of cards."""
    x, y, width, height = box.frame
    tail = len(box.node.ops) - 1
    step = (width - box.lead) / tail if tail else 0.0
    inset = min(step / 2, height / 4 / max(tail, 1))
    frames: list[Rect] = [(x + step * i, y + inset * i, box.lead, height - 2 * inset * i) for i in range(tail + 1)]
    return list(zip(box.node.ops, frames, strict=True))


def draw(name: str, box: Box, scale: Scale, axes: AxisNames) -> str:
    """The box as markup. name: of the figure, for the hatches."""
    out = []
    for i, (op, frame) in reversed(list(enumerate(sheets(box)))):
        land = territory(op, frame)
        drawn = [tiles(name, machine, rects, "tile") for machine, rects in land.items()] or [rect(frame, "none")]
        if i == 0:
            drawn += [_number(machine, max(rects, key=area)) for machine, rects in land.items()]
        out.append(tag("g", tooltip(_details(op, axes)), *drawn, rect(frame, "frame", rx=1), data_op=op.name))
    x, y, width, height = box.frame
    room = width + scale.gap * 0.74
    for i, (line, cls) in enumerate(_labels(box.node, scale, axes)):
        shown = fit(line, room, 12) if i == 0 else fit_end(line, room, 10) if i == 1 else fit(line, room, 10)
        out.append(words(x, y + height + 14 + LINE_HEIGHT * i, shown, cls))
    return tag("g", *out, cls="node")


def lead_frame(box: Box) -> Rect:
    x, y, _, height = box.frame
    return (x, y, box.lead, height)


def area(frame: Rect) -> float:
    return frame[2] * frame[3]


def _number(machine: int, frame: Rect) -> str:
    x, y, width, height = frame
    if width < 13 or height < 13:
        return ""
    return words(x + 5, y + min(height / 2 + 4, 16), str(machine), f"n{machine % MACHINE_COLOURS} small")


def short(op: OpPlacement) -> str:
    """The operator's kind without its library: "aten.linear.default" -> "linear"."""
    kinds = [part.strip("_") for part in op.op.split(".") if part not in _LIBRARY]
    kind = kinds[-1] if kinds else op.op
    return _SHORT.get(kind, kind)


def _labels(node: Node, scale: Scale, axes: AxisNames) -> list[tuple[str, str]]:
    first, tail = node.ops[0], node.ops[1:]
    cut = axes.loops(first, cut_loops(first))
    where = f"layer {first.module}" if first.module.isdigit() else first.module or first.name
    rows = [(short(first), "strong"), (where, "muted tiny")]
    if scale.labels > 2:
        rows.append((f"by {cut}" if cut else "whole", "muted tiny"))
    if scale.names_fused and tail:
        rows.append(("+ " + ", ".join(short(op) for op in tail), "muted tiny"))
    return rows


def _details(op: OpPlacement, axes: AxisNames) -> str:
    loops = " × ".join(f"{axes[loop.axis]} {loop.size}" for loop in op.loops)
    held = ", ".join(f"machine {machine}: {percent_text(part)}" for machine, part in shares(op).items())
    where = f" in {op.module}" if op.module else ""
    return f"{op.name} ({op.op}){where}\n{count_text(op.flops)}FLOP, {loops or 'no loops'}\n{held}"


def anchors(box: Box) -> dict[int, Point]:
    """Where each machine sends from: the edge of the box, or of its largest tile where that lies further in."""
    op = box.node.ops[-1]
    x0, _, width, _ = lead_frame(box)
    out = {}
    for machine, rects in territory(op, lead_frame(box)).items():
        x, y, wide, high = max(rects, key=area)
        at_edge = x + wide > x0 + width - 1
        middle = (x + wide / 2 - x0) / width
        out[machine] = (box.right if at_edge else x + max(wide - 9, wide / 2), y + high * (0.25 + 0.5 * middle))
    return out
