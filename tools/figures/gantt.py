"""A step as a Gantt chart, as predicted and, below on one scale, as measured: compute and sends of each machine."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...partition.placement.placement_file import Placement, Span
from ..analysis.measured import COMPUTE, OTHER, WAIT, Measured
from .theme import MACHINE_COLOURS
from .svg import chip, figure, fit, rect, tag, text_width, tiles, tooltip, words
from ..units import against_text, percent_text, seconds_text, ticks

NAME = "step"
_WIDTH, _RIGHT, _TOP, _ROW = 1120.0, 66.0, 52.0, 42.0
_HEAD = 26.0  # over the rows of a panel, where there are two
_COMPUTE, _SEND = 20.0, 7.0
_NARROWEST = 1.5


@dataclass(frozen=True)
class Bar:
    """Spans of one kind drawn as one, because they are too narrow to tell apart."""

    kind: str
    labels: tuple[str, ...]
    start_s: float
    stop_s: float


@dataclass(frozen=True)
class _Panel:
    """One timeline: how long its step is, and its spans. title: "" where it is the only one."""

    title: str
    step_s: float
    spans: Sequence[Span]

    @property
    def end_s(self) -> float:
        return max(self.step_s, *(span.stop_s for span in self.spans))


@dataclass(frozen=True)
class _Scale:
    """Where seconds are drawn: `left` is 0, and a second is `wide`."""

    left: float
    wide: float

    def x(self, seconds: float) -> float:
        return self.left + seconds * self.wide


def gantt(placement: Placement, measured: Measured | None = None, *, standalone: bool = True) -> str:
    """The predicted timeline, and the measured one where there is one, as an SVG; "" where there is neither."""
    panels = _panels(placement, measured)
    if not panels:
        return ""
    names = [machine.name for machine in placement.machines]
    left = 50.0 + max((text_width(fit(name, 130)) for name in names), default=0.0)
    end = max(panel.end_s for panel in panels) or 1e-9
    scale = _Scale(left, (_WIDTH - left - _RIGHT) / end)
    tall = _ROW * len(names) + (_HEAD if len(panels) > 1 else 0.0)
    height = _TOP + tall * len(panels)
    body = _axis(end, scale, height) + _key(left, measured=measured is not None)
    for i, panel in enumerate(panels):
        body += _panel(panel, names, _TOP + tall * i, scale)
    said = [
        f"One step of {placement.batch} samples takes {seconds_text(placement.predicted.step_s)} by the prediction."
    ]
    said += [] if measured is None else [f"It took {seconds_text(measured.step_s)}."]
    return figure(
        NAME,
        "Predicted step" if measured is None else "A step, predicted and measured",
        " ".join(said),
        size=(_WIDTH, height + 22),
        body=body,
        machines=len(names),
        standalone=standalone,
    )


def _panels(placement: Placement, measured: Measured | None) -> list[_Panel]:
    predicted = placement.predicted
    found = [_Panel("", predicted.step_s, predicted.timeline)] if predicted.timeline else []
    if measured is None or not measured.timeline:
        return found
    if found:
        found = [_Panel(f"Predicted: {seconds_text(predicted.step_s)}", predicted.step_s, predicted.timeline)]
    title = f"Measured: {seconds_text(measured.step_s)}"
    if predicted.step_s > 0:
        title += f", {against_text(measured.step_s, predicted.step_s)}"
    return [*found, _Panel(title, measured.step_s, measured.timeline)]


def _panel(panel: _Panel, names: Sequence[str], top: float, scale: _Scale) -> str:
    out = []
    if panel.title:
        out.append(words(12, top + 14, panel.title, "strong halo"))
        top += _HEAD
    for i, name in enumerate(names):
        mine = sorted((s for s in panel.spans if s.machine == i), key=lambda s: (s.start_s, s.stop_s, s.kind, s.label))
        out.append(_machine(i, name, mine, panel, top + _ROW * i, scale))
    return "".join(out)


def _machine(i: int, name: str, mine: list[Span], panel: _Panel, y: float, scale: _Scale) -> str:
    """A row of compute, on a track that shows where the machine waits, and a thin row of sends."""
    narrow_s = _NARROWEST / scale.wide
    compute = [s for s in mine if s.kind in COMPUTE]
    rows = [[s for s in mine if s.kind == kind] for kind in (WAIT, OTHER)]
    bars = [bar for row in (*rows, compute, [s for s in mine if s.kind == "send"]) for bar in merge(row, narrow_s)]
    busy = sum(span.stop_s - span.start_s for span in compute) / (panel.end_s or 1e-9)
    drawn = [_bar(i, bar, y=y, scale=scale) for bar in bars]
    label = words(_WIDTH - _RIGHT + 8, y + 15, percent_text(busy) + " busy", "muted tiny")
    head = chip(NAME, 12, y + 2, i) + words(34, y + 14, fit(name, 130))
    track = rect((scale.left, y, panel.end_s * scale.wide, _COMPUTE), "track")
    return tag("g", head, track, *drawn, label, data_machine=name)


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


def _bar(machine: int, bar: Bar, *, y: float, scale: _Scale) -> str:
    x, wide = scale.x(bar.start_s), max((bar.stop_s - bar.start_s) * scale.wide, 0.6)
    what = bar.labels[0] if len(bar.labels) == 1 else f"{len(bar.labels)} of them, {bar.labels[0]} to {bar.labels[-1]}"
    said = what if what.startswith(bar.kind) else f"{bar.kind} {what}"
    title = tooltip(f"{said}\n{seconds_text(bar.start_s)} to {seconds_text(bar.stop_s)}")
    if bar.kind == "send":
        return tag("g", title, rect((x, y + _COMPUTE + 3, wide, _SEND), "send"))
    if bar.kind in (WAIT, OTHER):
        return tag("g", title, rect((x, y, wide, _COMPUTE), bar.kind))
    backward = bar.kind == "backward"
    colour = f"f{machine % MACHINE_COLOURS} tile"
    fill = rect((x, y, wide, _COMPUTE), f"{colour} back" if backward else colour)
    label = bar.labels[0] if len(bar.labels) == 1 and text_width(bar.labels[0], 10) < wide - 8 else ""
    ink = "tiny" if backward else f"n{machine % MACHINE_COLOURS} tiny"
    return tag("g", title, fill, words(x + 4, y + 14, label, ink) if label else "")


def _axis(end: float, scale: _Scale, height: float) -> str:
    out = []
    for at in ticks(end, count=8):
        x = scale.x(at)
        out.append(tag("path", d=f"M{x:.1f} {_TOP - 6:.1f}V{height:.1f}", cls="rule"))
        out.append(words(x, height + 14, seconds_text(at), "muted tiny mid"))
    return "".join(out)


def _key(left: float, *, measured: bool) -> str:
    """What full, pale and thin bars mean, and what a measured step has besides."""
    swatches: tuple[str, ...] = (
        tiles(NAME, 0, [(left, 14, 22, 12)]) + words(left + 28, 24, "forward", "muted small"),
        tiles(NAME, 0, [(left + 96, 14, 22, 12)], "back") + words(left + 124, 24, "backward", "muted small"),
        rect((left + 204, 17, 22, _SEND), "send") + words(left + 232, 24, "sends", "muted small"),
    )
    if measured:
        swatches += (
            rect((left + 284, 14, 22, 12), "track") + words(left + 312, 24, "waits", "muted small"),
            rect((left + 364, 14, 22, 12), "other") + words(left + 392, 24, "other work", "muted small"),
        )
    return "".join(swatches)
