"""The legend over the cut map: machines with their colours and part of the work, and what the marks mean."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...partition.placement.placement_file import OpPlacement, Placement
from ..units import format_count, format_percent
from .svg import element, fit_text, item, measure_text, rect, render_chip, text_line

_ROW = 24.0


def render_legend(
    name: str, placement: Placement, width: float, *, margin: float, standalone: bool
) -> tuple[str, float]:
    """Render the legend; return it and its height. standalone: whether to put the model's name above it."""
    total = sum(machine.flops for machine in placement.machines) or 1.0
    names = [fit_text(machine.name, 150) for machine in placement.machines]
    parts = [f"{format_percent(machine.flops / total)} of the work" for machine in placement.machines]
    pairs = zip(names, parts, strict=True)
    step = max((measure_text(name) + measure_text(part, 11) for name, part in pairs), default=0) + 54
    if width < 2 * step:  # so that more than one has room beside the other
        parts = [part.removesuffix(" of the work") for part in parts]
        step -= measure_text(" of the work", 11)
    across = max(int(width / step), 1)
    top = 16.0
    out = []
    if standalone:
        out.append(text_line(margin, 30, fit_text(placement.model, width - 10, 15), "strong", font_size="15"))
        top = 48.0
    for i, (machine, name_shown) in enumerate(zip(placement.machines, names, strict=True)):
        x, y = margin + step * (i % across), top + _ROW * (i // across)
        title = f"{machine.name}: {format_count(machine.flops)}FLOP a step"
        label = text_line(x + 22, y + 12, name_shown)
        part = text_line(x + 30 + measure_text(name_shown), y + 12, parts[i], "muted small")
        out.append(item(title, render_chip(name, x, y, i), label, part, data_machine=machine.name))
    rows = -(-len(placement.machines) // across)
    y = top + _ROW * rows + 12
    key, height = _render_key(margin, y, width)
    out.append(key)
    return "".join(out), y + height


def _render_key(left: float, top: float, width: float) -> tuple[str, float]:
    """Render what thin and bold lines and rings mean, in as many lines as that needs; return it and its height."""
    labels = (
        *("stays on its machines", "crosses between machines; wider for more bytes", "sends"),
        *("bytes that it sends", "parameters that come from other machines"),
    )
    out = []
    x, y = left, top
    for i, label in enumerate(labels):
        wide = 30 + measure_text(label, 11) + 22
        if x > left and x + wide - 22 > left + width:
            x, y = left, y + 20
        marks = (
            element("path", d=f"M{x:.0f} {y - 4:.0f}h22", cls="wire"),
            element("path", d=f"M{x + 2:.0f} {y - 4:.0f}h18", cls="cross", stroke_width=4),
            element("circle", cx=x + 16, cy=y - 4, r=4, cls="ring"),
            rect((x + 2, y - 10, 22, 12), "pill", rx=6),
            rect((x + 2, y - 10, 22, 12), "received", rx=6),
        )
        out += [marks[i], text_line(x + 30, y, label, "muted small")]
        x += wide
    return "".join(out), y - top + 14


@dataclass(frozen=True)
class AxisNames:
    """The readable names of axes; an axis of which nothing is known keeps its own name."""

    names: Mapping[str, str]

    def __getitem__(self, axis: str) -> str:
        return self.names.get(axis, axis)

    def describe_loops(self, op: OpPlacement, chosen: list[int]) -> str:
        """Name the chosen loops of an operator, outermost first: "rows × columns"."""
        return " × ".join(self[op.loops[i].axis] for i in chosen)


def learn_axis_names(placement: Placement) -> AxisNames:
    """Name each axis by the first operator that says what it is: image operators, attention, then linear ones."""
    names: dict[str, str] = {}
    for find_names in (_name_image_axes, _name_attention_axes, _name_linear_axes):
        for op in placement.ops:
            for axis, name in find_names(op, placement.batch).items():
                names.setdefault(axis, name)
    return AxisNames(names)


def _list_parallel_axes(op: OpPlacement) -> list[str]:
    return [loop.axis for loop in op.loops if loop.kind != "reduction"]


def _name_image_axes(op: OpPlacement, batch: int) -> dict[str, str]:
    """Convolution, local filters and pooling put out batch, channels, rows, columns."""
    axes = _list_parallel_axes(op)
    if "2d" not in op.op or "norm" in op.op or len(axes) != 4 or op.loops[0].size != batch:
        return {}
    return dict(zip(axes, ("batch", "channels", "rows", "columns"), strict=True))


def _name_attention_axes(op: OpPlacement, batch: int) -> dict[str, str]:
    axes = _list_parallel_axes(op)
    if "scaled_dot_product" not in op.op or len(axes) != 4 or op.loops[0].size != batch:
        return {}
    return dict(zip(axes, ("batch", "heads", "tokens", "head size"), strict=True))


def _name_linear_axes(op: OpPlacement, batch: int) -> dict[str, str]:
    """The last loop in the output of a linear operator is its units; the first is the batch where it has that size."""
    axes = _list_parallel_axes(op)
    if "linear" not in op.op or len(axes) < 2:
        return {}
    first = {axes[0]: "batch"} if op.loops[0].size == batch else {}
    return {**first, axes[-1]: "units"}
