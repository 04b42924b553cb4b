"""Load bars: each machine's part of the work, its busy time in a step, and its memory against the limit."""

from ...partition.placement.placement_file import MachinePlacement, Placement
from .svg import chip, figure, fit, rect, tag, text_width, tiles, tooltip, words
from ..units import bytes_text, count_text, percent_text, seconds_text

NAME = "load"
_BAR, _GAP, _ROW, _TOP = 148.0, 24.0, 40.0, 40.0


def load_bars(placement: Placement, *, standalone: bool = True) -> str:
    """FLOPs, busy seconds and memory of every machine, as an SVG."""
    machines = placement.machines
    total = sum(machine.flops for machine in machines) or 1.0
    most = max((machine.flops for machine in machines), default=0.0) or 1.0
    step = max(placement.predicted.step_s, *(machine.busy_s for machine in machines), 1e-12)
    left = 46.0 + max((text_width(fit(m.name, 130)) for m in machines), default=0.0)
    starts = [left + (_BAR + _GAP) * i for i in range(3)]
    heads = ("work", "busy in a step", "memory")
    out = [words(x, 22, label, "muted small") for x, label in zip(starts, heads, strict=True)]
    for i, machine in enumerate(machines):
        y = _TOP + _ROW * i
        name = words(34, y + 16, fit(machine.name, 130))
        used = machine.memory_used_bytes / machine.memory_bytes if machine.memory_bytes else 0.0
        label = f"{bytes_text(machine.memory_used_bytes)} of {bytes_text(machine.memory_bytes)}"
        row = (
            _bar(
                i,
                starts[0],
                y,
                machine.flops / most,
                f"{count_text(machine.flops)}FLOP",
                percent_text(machine.flops / total),
            ),
            _bar(
                i,
                starts[1],
                y,
                machine.busy_s / step,
                seconds_text(machine.busy_s),
                percent_text(machine.busy_s / step),
            ),
            _bar(i, starts[2], y, used, label, percent_text(used)),
        )
        out.append(tag("g", tooltip(_details(machine)), chip(NAME, 12, y + 4, i), name, *row))
    return figure(
        NAME,
        "Load of the machines",
        _describe(placement),
        size=(starts[2] + _BAR + 16, _TOP + _ROW * len(machines) + 4),
        body="".join(out),
        machines=len(machines),
        standalone=standalone,
    )


def _bar(machine: int, x: float, y: float, share: float, value: str, part: str) -> str:
    """A bar on its track, the value above its start and the share above its end; over the limit in words and colour."""
    over = share > 1.0 + 1e-9
    texts = words(x, y + 10, value, "small") + words(
        x + _BAR, y + 10, part, f"end small {'bad strong' if over else 'muted'}"
    )
    if over:
        texts = words(x, y + 10, value, "small bad strong") + words(x + _BAR, y + 10, "over", "end small bad strong")
    track = rect((x, y + 16, _BAR, 9), "track", rx=2)
    wide = _BAR * min(max(share, 0.0), 1.0)
    mark = tag("path", d=f"M{x + _BAR:.1f} {y + 13:.1f}v15", cls="mark") if over else ""
    return texts + track + tiles(NAME, machine, [(x, y + 16, wide, 9)]) + mark


def _details(machine: MachinePlacement) -> str:
    return (
        f"{machine.name}: {count_text(machine.flops)}FLOP a step at {count_text(machine.flops_per_s)}FLOP/s, "
        f"busy {seconds_text(machine.busy_s)}; {bytes_text(machine.memory_used_bytes)} of "
        f"{bytes_text(machine.memory_bytes)}; {machine.parameters} parameters"
    )


def _describe(placement: Placement) -> str:
    return " ".join(_details(machine) + "." for machine in placement.machines)
