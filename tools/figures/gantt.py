"""A step as a Gantt chart: compute and sends of each machine, as predicted and, on the same scale, as measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...partition.placement.placement_file import Placement, TimelineSpan
from ..analysis.measured_step import COMPUTE, OTHER, WAIT, MeasuredStep
from ..units import choose_ticks, format_against_prediction, format_percent, format_seconds
from .svg import (
    element,
    fit_text,
    item,
    measure_text,
    name_figure,
    rect,
    render_chip,
    render_figure,
    render_tiles,
    text_line,
    wrap_text,
)
from .theme import MACHINE_COLOURS

NAME = "step"
LEGEND = "Top bar: compute. Bottom bar: sends."
_TOP = 52.0
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
    """Where seconds are drawn: `left` is 0, and a second is `wide`.

    width: of the figure; row: height of a machine's; head: of its name and how busy it is, over its bars on phones.
    """

    left: float
    wide: float
    width: float
    row: float
    head: float

    def x(self, seconds: float) -> float:
        return self.left + seconds * self.wide


def render_gantt(
    placement: Placement,
    measured: MeasuredStep | None = None,
    *,
    standalone: bool = True,
    narrow: bool = False,
    name: str = NAME,
) -> str:
    """Render the predicted timeline, and the measured one if there is one; "" if there is neither.

    name: unique in a page.
    """
    panels = _make_panels(placement, measured)
    if not panels:
        return ""
    name = name_figure(name, narrow=narrow)
    names = [machine.name for machine in placement.machines]
    end = max(panel.end_s for panel in panels) or 1e-9
    scale = _choose_scale(names, end, narrow=narrow)
    titles = [wrap_text(panel.title, scale.width - 16, 12.5) for panel in panels]
    head = 10.0 + 16 * max(map(len, titles)) if len(panels) > 1 else 0.0
    tall = head + scale.row * len(names)
    key, key_height = _render_key(name, scale, measured=measured is not None)
    top = _TOP + key_height
    height = top + tall * len(panels)
    ticks = choose_ticks(end, count=3 if narrow else 8)
    body = key
    for i, panel in enumerate(panels):
        lines = [text_line(8, top + tall * i + 14 + 16 * n, line, "strong") for n, line in enumerate(titles[i])]
        body += "".join(lines) + _render_panel(name, panel, names, ticks, top=top + tall * i + head, scale=scale)
    body += _render_axis(ticks, scale, height)
    description = [
        f"One step of {placement.batch} samples takes {format_seconds(placement.predicted.step_s)} by the prediction."
    ]
    description += [] if measured is None else [f"It took {format_seconds(measured.step_s)}."]
    return render_figure(
        name,
        "Predicted step" if measured is None else "A step, predicted and measured",
        " ".join(description),
        size=(scale.width, height + 22),
        body=body,
        machines=len(names),
        standalone=standalone,
    )


def _choose_scale(names: Sequence[str], end: float, *, narrow: bool) -> _Scale:
    """Choose where bars begin and end: beside the names, or below them."""
    if narrow:
        return _Scale(8.0, (320.0 - 16.0) / end, 320.0, 62.0, 20.0)
    left = 50.0 + max((measure_text(fit_text(name, 130)) for name in names), default=0.0)
    return _Scale(left, (1120.0 - left - 74.0) / end, 1120.0, 42.0, 0.0)


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


def _render_panel(
    figure: str, panel: _Panel, names: Sequence[str], ticks: Sequence[float], *, top: float, scale: _Scale
) -> str:
    out = []
    for i, name in enumerate(names):
        spans = sorted((s for s in panel.spans if s.machine == i), key=lambda s: (s.start_s, s.stop_s, s.kind, s.label))
        y = top + scale.row * i
        busy_s = sum(span.stop_s - span.start_s for span in spans if span.kind in COMPUTE)
        head = _render_head(figure, i, name, busy_s / (panel.end_s or 1e-9), y=y, scale=scale)
        bars = _render_machine(figure, i, spans, panel, ticks, y=y + scale.head, scale=scale)
        out.append(element("g", head, bars, data_machine=name))
    return "".join(out)


def _render_head(figure: str, i: int, name: str, busy: float, *, y: float, scale: _Scale) -> str:
    """Render which machine it is and how busy, beside its bars or above them."""
    x, side = (scale.width - 8, "muted small end") if scale.head else (scale.width - 66, "muted small")
    label = text_line(x, y + 15, f"{format_percent(busy)} busy", side)
    return render_chip(figure, 8, y + 2, i) + text_line(30, y + 14, fit_text(name, 130)) + label


def _render_machine(
    figure: str,
    i: int,
    spans: list[TimelineSpan],
    panel: _Panel,
    ticks: Sequence[float],
    *,
    y: float,
    scale: _Scale,
) -> str:
    """Render a row of compute, on a track that shows where the machine waits, and a thin row of sends."""
    narrow_s = _MIN_WIDTH / scale.wide
    rows = [[s for s in spans if s.kind in kinds] for kinds in ((WAIT,), (OTHER,), COMPUTE, ("send",))]
    shapes = [_render_bar(figure, i, bar, y=y, scale=scale) for row in rows for bar in merge_spans(row, narrow_s)]
    rules = [element("path", d=f"M{scale.x(at):.1f} {y + _COMPUTE:.1f}v{_SEND + 3:.1f}", cls="rule") for at in ticks]
    track = rect((scale.left, y, panel.end_s * scale.wide, _COMPUTE), "track")
    return "".join((*rules, track, *shapes))


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


def _render_bar(figure: str, machine: int, bar: MergedSpans, *, y: float, scale: _Scale) -> str:
    x, wide = scale.x(bar.start_s), max((bar.stop_s - bar.start_s) * scale.wide, 0.6)
    what = bar.labels[0] if len(bar.labels) == 1 else f"{len(bar.labels)} spans, {bar.labels[0]} to {bar.labels[-1]}"
    kind = what if what.startswith(bar.kind) else f"{bar.kind} {what}"
    times = f"{format_seconds(bar.start_s)} to {format_seconds(bar.stop_s)}"
    description = f"{kind}\n{times} on machine {machine}"
    if bar.kind == "send":
        return item(description, rect((x, y + _COMPUTE + 3, wide, _SEND), "send"))
    if bar.kind in (WAIT, OTHER):
        return item(description, rect((x, y, wide, _COMPUTE), bar.kind))
    backward = bar.kind != "forward"
    fill = render_tiles(figure, machine, [(x, y, wide, _COMPUTE)], "tile back" if backward else "tile")
    label = bar.labels[0] if len(bar.labels) == 1 and measure_text(bar.labels[0], 12.5) < wide - 8 else ""
    ink = "small" if backward else f"n{machine % MACHINE_COLOURS} small"
    return item(description, fill, text_line(x + 4, y + 14, label, ink) if label else "")


def _render_axis(ticks: Sequence[float], scale: _Scale, height: float) -> str:
    out = []
    for at in ticks:
        label = format_seconds(at)
        half = measure_text(label, 11) / 2 + 1
        middle = min(max(scale.x(at), half), scale.width - half)
        out.append(text_line(middle, height + 14, label, "muted small mid"))
    return "".join(out)


def _render_key(figure: str, scale: _Scale, *, measured: bool) -> tuple[str, float]:
    """Render what full, pale and thin bars mean, and what else a measured step has; and what height that adds."""
    labels = ("forward", "backward", "sends", *(("waits", "other work") if measured else ()))
    x, y = scale.left, 14.0
    out = []
    for i, label in enumerate(labels):
        wide = 28 + measure_text(label, 11)
        if x + wide > scale.width - 8:
            x, y = scale.left, y + 20
        swatches = (
            render_tiles(figure, 0, [(x, y, 22, 12)]),
            render_tiles(figure, 0, [(x, y, 22, 12)], "back"),
            rect((x, y + 3, 22, _SEND), "send"),
            rect((x, y, 22, 12), "track"),
            rect((x, y, 22, 12), "other"),
        )
        out += [swatches[i], text_line(x + 28, y + 10, label, "muted small")]
        x += wide + 18
    return "".join(out), y - 14
