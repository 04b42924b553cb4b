"""The legend over the cut map: machines with their colours and part of the work, and what the marks mean."""

from ...partition.placement.placement_file import Placement
from .svg import chip, fit, tag, text_width, tooltip, words
from ..units import count_text, percent_text

_ROW = 24.0


def legend(name: str, placement: Placement, width: float, *, standalone: bool) -> tuple[str, float]:
    """The legend and its height. standalone: with the model's name above it."""
    total = sum(machine.flops for machine in placement.machines) or 1.0
    names = [fit(machine.name, 150) for machine in placement.machines]
    parts = [f"{percent_text(machine.flops / total)} of FLOPs" for machine in placement.machines]
    step = (
        max((text_width(name) + text_width(part, 11) for name, part in zip(names, parts, strict=True)), default=0) + 54
    )
    across = max(int(width / step), 1)
    top = 16.0
    out = []
    if standalone:
        out.append(words(16, 30, fit(placement.model, width - 10, 15), "strong", font_size="15"))
        top = 48.0
    for i, (machine, name_shown) in enumerate(zip(placement.machines, names, strict=True)):
        x, y = 16 + step * (i % across), top + _ROW * (i // across)
        title = tooltip(f"{machine.name}: {count_text(machine.flops)}FLOP a step")
        label = words(x + 22, y + 12, name_shown)
        part = words(x + 30 + text_width(name_shown), y + 12, parts[i], "muted small")
        out.append(tag("g", title, chip(name, x, y, i), label, part, data_machine=machine.name))
    rows = -(-len(placement.machines) // across)
    y = top + _ROW * rows + 12
    out.append(_key(16, y))
    return "".join(out), y + 14


def _key(x: float, y: float) -> str:
    """What thin and bold lines and rings mean."""
    labels = ("stays on its machines", "crosses between machines; wider for more bytes", "sends")
    starts = [x]
    for label in labels:
        starts.append(starts[-1] + 30 + text_width(label, 11) + 26)
    marks = (
        tag("path", d=f"M{starts[0]:.0f} {y - 4:.0f}h22", cls="wire"),
        tag("path", d=f"M{starts[1] + 2:.0f} {y - 4:.0f}h18", cls="cross", stroke_width=4),
        tag("circle", cx=starts[2] + 16, cy=y - 4, r=4, cls="ring"),
    )
    texts = [words(start + 30, y, label, "muted small") for start, label in zip(starts, labels, strict=False)]
    return "".join(marks) + "".join(texts)
