"""The predicted step as a Gantt chart: a row of compute and a row of sends per machine."""

from dataclasses import dataclass

from ..partition.placement import Placement, Span
from .style import MACHINE_COLOURS
from .svg import chip, figure, fit, rect, tag, text_width, tiles, tooltip, words
from .units import percent_text, seconds_text, ticks

NAME = "step"
_WIDTH, _RIGHT, _TOP, _ROW = 1120.0, 66.0, 52.0, 42.0
_COMPUTE, _SEND = 20.0, 7.0
_NARROWEST = 1.5


@dataclass(frozen=True)
class Bar:
    """Spans of one kind drawn as one, because they are too narrow to tell apart."""

    kind: str
    labels: tuple[str, ...]
    start_s: float
    stop_s: float


def gantt(placement: Placement, *, standalone: bool = True) -> str:
    """The predicted timeline as an SVG; "" where the placement has none."""
    spans = placement.predicted.timeline
    if not spans:
        return ""
    names = [machine.name for machine in placement.machines]
    left = 50.0 + max((text_width(fit(name, 130)) for name in names), default=0.0)
    end = max(placement.predicted.step_s, *(span.stop_s for span in spans)) or 1e-9
    scale = (_WIDTH - left - _RIGHT) / end
    height = _TOP + _ROW * len(names)
    out = [_axis(end, left, scale, height), _key(left)]
    for i, name in enumerate(names):
        y = _TOP + _ROW * i
        mine = sorted((s for s in spans if s.machine == i), key=lambda s: (s.start_s, s.stop_s, s.kind, s.label))
        compute = [span for span in mine if span.kind != "send"]
        bars = merge(compute, _NARROWEST / scale) + merge([s for s in mine if s.kind == "send"], _NARROWEST / scale)
        drawn = [_bar(i, bar, left=left, y=y, scale=scale) for bar in bars]
        busy = sum(span.stop_s - span.start_s for span in compute) / end
        label = words(_WIDTH - _RIGHT + 8, y + 15, percent_text(busy) + " busy", "muted tiny")
        head = chip(NAME, 12, y + 2, i) + words(34, y + 14, fit(name, 130))
        out.append(tag("g", head, rect((left, y, end * scale, _COMPUTE), "track"), *drawn, label, data_machine=name))
    return figure(
        NAME,
        "Predicted step",
        f"One step of {placement.batch} samples takes {seconds_text(placement.predicted.step_s)} by the prediction.",
        size=(_WIDTH, height + 22),
        body="".join(out),
        machines=len(names),
        standalone=standalone,
    )


def merge(spans: list[Span], narrow_s: float) -> list[Bar]:
    """Spans in order of time, neighbours of one kind joined where they are narrower than `narrow_s`."""
    bars: list[Bar] = []
    for span in spans:
        last = bars[-1] if bars else None
        joins = (
            last is not None
            and last.kind == span.kind
            and span.start_s - last.stop_s < narrow_s
            and min(span.stop_s - span.start_s, last.stop_s - last.start_s) < narrow_s
        )
        if joins and last is not None:
            bars[-1] = Bar(last.kind, (*last.labels, span.label), last.start_s, max(last.stop_s, span.stop_s))
        else:
            bars.append(Bar(span.kind, (span.label,), span.start_s, span.stop_s))
    return bars


def _bar(machine: int, bar: Bar, *, left: float, y: float, scale: float) -> str:
    x, wide = left + bar.start_s * scale, max((bar.stop_s - bar.start_s) * scale, 0.6)
    what = bar.labels[0] if len(bar.labels) == 1 else f"{len(bar.labels)} of them, {bar.labels[0]} to {bar.labels[-1]}"
    title = tooltip(f"{bar.kind} {what}\n{seconds_text(bar.start_s)} to {seconds_text(bar.stop_s)}")
    if bar.kind == "send":
        return tag("g", title, rect((x, y + _COMPUTE + 3, wide, _SEND), "send"))
    backward = bar.kind == "backward"
    colour = f"f{machine % MACHINE_COLOURS} tile"
    fill = rect((x, y, wide, _COMPUTE), f"{colour} back" if backward else colour)
    label = bar.labels[0] if len(bar.labels) == 1 and text_width(bar.labels[0], 10) < wide - 8 else ""
    ink = "tiny" if backward else f"n{machine % MACHINE_COLOURS} tiny"
    return tag("g", title, fill, words(x + 4, y + 14, label, ink) if label else "")


def _axis(end: float, left: float, scale: float, height: float) -> str:
    out = []
    for at in ticks(end, count=8):
        x = left + at * scale
        out.append(tag("path", d=f"M{x:.1f} {_TOP - 6:.1f}V{height:.1f}", cls="rule"))
        out.append(words(x, height + 14, seconds_text(at), "muted tiny mid"))
    return "".join(out)


def _key(left: float) -> str:
    """What full, pale and thin bars mean."""
    swatches = (
        tiles(NAME, 0, [(left, 14, 22, 12)]) + words(left + 28, 24, "forward", "muted small"),
        tiles(NAME, 0, [(left + 96, 14, 22, 12)], "back") + words(left + 124, 24, "backward", "muted small"),
        rect((left + 204, 17, 22, _SEND), "send") + words(left + 232, 24, "sends", "muted small"),
    )
    return "".join(swatches)
