"""A step as a Gantt chart: compute and sends of each machine, as predicted and, on the same scale, as measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...partition.placement.placement_file import Placement, TimelineSpan
from ..analysis.measured_step import COMPUTE, OTHER, WAIT, MeasuredStep
from ..units import choose_ticks, format_against_prediction, format_percent, format_seconds
from .svg import element, fit_text, measure_text, rect, render_chip, render_figure, render_tiles, text_line, tooltip
from .theme import MACHINE_COLOURS

NAME = "step"
LEGEND = "Top bar: compute. Bottom bar: sends."
_WIDTH, _RIGHT, _TOP, _ROW = 1120.0, 66.0, 52.0, 42.0
_HEAD = 26.0  # over the rows of a panel, where there are two
_COMPUTE, _SEND = 20.0, 7.0
_MIN_WIDTH = 1.5


@dataclass(frozen=True)
class MergedSpans:
    """Spans of one kind that are drawn as one, because they are too narrow to tell apart."""

    kind: str
    labels: tuple[str, ...]
    start_s: float
    stop_s: float


@dataclass(frozen=True)
class _Panel:
    """One timeline: how long its step is, and its spans. title: "" where it is the only one."""

    title: str
    step_s: float
    spans: Sequence[TimelineSpan]

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


def render_gantt(placement: Placement, measured: MeasuredStep | None = None, *, standalone: bool = True) -> str:
    """Render the predicted timeline, and the measured one if there is one; "" if there is neither."""
    panels = _make_panels(placement, measured)
    if not panels:
        return ""
    names = [machine.name for machine in placement.machines]
    left = 50.0 + max((measure_text(fit_text(name, 130)) for name in names), default=0.0)
    end = max(panel.end_s for panel in panels) or 1e-9
    scale = _Scale(left, (_WIDTH - left - _RIGHT) / end)
    tall = _ROW * len(names) + (_HEAD if len(panels) > 1 else 0.0)
    height = _TOP + tall * len(panels)
    body = _render_axis(end, scale, height) + _render_key(left, measured=measured is not None)
    for i, panel in enumerate(panels):
        body += _render_panel(panel, names, _TOP + tall * i, scale)
    description = [
        f"One step of {placement.batch} samples takes {format_seconds(placement.predicted.step_s)} by the prediction."
    ]
    description += [] if measured is None else [f"It took {format_seconds(measured.step_s)}."]
    return render_figure(
        NAME,
        "Predicted step" if measured is None else "A step, predicted and measured",
        " ".join(description),
        size=(_WIDTH, height + 22),
        body=body,
        machines=len(names),
        standalone=standalone,
    )


def _make_panels(placement: Placement, measured: MeasuredStep | None) -> list[_Panel]:
    predicted = placement.predicted
    panels = [_Panel("", predicted.step_s, predicted.timeline)] if predicted.timeline else []
    if measured is None or not measured.timeline:
        return panels
    if panels:
        panels = [_Panel(f"Predicted: {format_seconds(predicted.step_s)}", predicted.step_s, predicted.timeline)]
    title = f"Measured: {format_seconds(measured.step_s)}"
    if predicted.step_s > 0:
        title += f", {format_against_prediction(measured.step_s, predicted.step_s)}"
    return [*panels, _Panel(title, measured.step_s, measured.timeline)]


def _render_panel(panel: _Panel, names: Sequence[str], top: float, scale: _Scale) -> str:
    out = []
    if panel.title:
        out.append(text_line(12, top + 14, panel.title, "strong halo"))
        top += _HEAD
    for i, name in enumerate(names):
        spans = sorted((s for s in panel.spans if s.machine == i), key=lambda s: (s.start_s, s.stop_s, s.kind, s.label))
        out.append(_render_machine(i, name, spans, panel, top + _ROW * i, scale))
    return "".join(out)


def _render_machine(i: int, name: str, spans: list[TimelineSpan], panel: _Panel, y: float, scale: _Scale) -> str:
    """Render a row of compute, on a track that shows where the machine waits, and a thin row of sends."""
    narrow_s = _MIN_WIDTH / scale.wide
    compute = [s for s in spans if s.kind in COMPUTE]
    rows = [[s for s in spans if s.kind == kind] for kind in (WAIT, OTHER)]
    bars = [
        bar for row in (*rows, compute, [s for s in spans if s.kind == "send"]) for bar in merge_spans(row, narrow_s)
    ]
    busy = sum(span.stop_s - span.start_s for span in compute) / (panel.end_s or 1e-9)
    shapes = [_render_bar(i, bar, y=y, scale=scale) for bar in bars]
    label = text_line(_WIDTH - _RIGHT + 8, y + 15, format_percent(busy) + " busy", "muted tiny")
    head = render_chip(NAME, 12, y + 2, i) + text_line(34, y + 14, fit_text(name, 130))
    track = rect((scale.left, y, panel.end_s * scale.wide, _COMPUTE), "track")
    return element("g", head, track, *shapes, label, data_machine=name)


def merge_spans(spans: list[TimelineSpan], narrow_s: float) -> list[MergedSpans]:
    """Merge neighbours of one kind that are narrower than `narrow_s`; the spans are in order of time."""
    bars: list[MergedSpans] = []
    for span in spans:
        last = bars[-1] if bars else None
        joins = (
            last is not None
            and last.kind == span.kind
            and span.start_s - last.stop_s < narrow_s
            and min(span.stop_s - span.start_s, last.stop_s - last.start_s) < narrow_s
        )
        if joins and last is not None:
            bars[-1] = MergedSpans(last.kind, (*last.labels, span.label), last.start_s, max(last.stop_s, span.stop_s))
        else:
            bars.append(MergedSpans(span.kind, (span.label,), span.start_s, span.stop_s))
    return bars


def _render_bar(machine: int, bar: MergedSpans, *, y: float, scale: _Scale) -> str:
    x, wide = scale.x(bar.start_s), max((bar.stop_s - bar.start_s) * scale.wide, 0.6)
    what = bar.labels[0] if len(bar.labels) == 1 else f"{len(bar.labels)} spans, {bar.labels[0]} to {bar.labels[-1]}"
    description = what if what.startswith(bar.kind) else f"{bar.kind} {what}"
    title = tooltip(f"{description}\n{format_seconds(bar.start_s)} to {format_seconds(bar.stop_s)}")
    if bar.kind == "send":
        return element("g", title, rect((x, y + _COMPUTE + 3, wide, _SEND), "send"))
    if bar.kind in (WAIT, OTHER):
        return element("g", title, rect((x, y, wide, _COMPUTE), bar.kind))
    backward = bar.kind == "backward"
    colour = f"f{machine % MACHINE_COLOURS} tile"
    fill = rect((x, y, wide, _COMPUTE), f"{colour} back" if backward else colour)
    label = bar.labels[0] if len(bar.labels) == 1 and measure_text(bar.labels[0], 10) < wide - 8 else ""
    ink = "tiny" if backward else f"n{machine % MACHINE_COLOURS} tiny"
    return element("g", title, fill, text_line(x + 4, y + 14, label, ink) if label else "")


def _render_axis(end: float, scale: _Scale, height: float) -> str:
    out = []
    for at in choose_ticks(end, count=8):
        x = scale.x(at)
        out.append(element("path", d=f"M{x:.1f} {_TOP - 6:.1f}V{height:.1f}", cls="rule"))
        out.append(text_line(x, height + 14, format_seconds(at), "muted tiny mid"))
    return "".join(out)


def _render_key(left: float, *, measured: bool) -> str:
    """Render what full, pale and thin bars mean, and what else a measured step has."""
    swatches: tuple[str, ...] = (
        render_tiles(NAME, 0, [(left, 14, 22, 12)]) + text_line(left + 28, 24, "forward", "muted small"),
        render_tiles(NAME, 0, [(left + 96, 14, 22, 12)], "back") + text_line(left + 124, 24, "backward", "muted small"),
        rect((left + 204, 17, 22, _SEND), "send") + text_line(left + 232, 24, "sends", "muted small"),
    )
    if measured:
        swatches += (
            rect((left + 284, 14, 22, 12), "track") + text_line(left + 312, 24, "waits", "muted small"),
            rect((left + 364, 14, 22, 12), "other") + text_line(left + 392, 24, "other work", "muted small"),
        )
    return "".join(swatches)
