"""What asynchronous training costs, as three figures: staleness by worker, staleness by worker and shard, and waiting.

The staleness of a push is the number of updates by others between the worker's fetch and its push.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..units import format_percent, format_seconds
from .svg import element, fit_text, item, measure_text, name_figure, rect, render_figure, text_line

_CELL_WIDTH, _CELL_HEIGHT, _COLUMNS = 270.0, 118.0, 4
_MAX_BARS = 32


def render_staleness_histograms(
    staleness: Mapping[str, Mapping[str, int]], *, standalone: bool = True, narrow: bool = False
) -> str:
    """Render one small histogram for each worker, all on one scale; "" without pushes.

    staleness: worker -> staleness -> pushes.
    """
    counts = {
        worker: {int(tau): int(pushes) for tau, pushes in taus.items()} for worker, taus in sorted(staleness.items())
    }
    counts = {worker: taus for worker, taus in counts.items() if sum(taus.values())}
    if not counts:
        return ""
    longest = max(tau for taus in counts.values() for tau in taus)
    step = -(-(longest + 1) // _MAX_BARS)
    binned = {worker: bin_counts(taus, step, longest) for worker, taus in counts.items()}
    peak = max(max(bins) / sum(bins) for bins in binned.values())
    columns = 1 if narrow else min(_COLUMNS, len(binned))
    out = []
    for i, (worker, bins) in enumerate(binned.items()):
        x, y = 16 + (_CELL_WIDTH + 6) * (i % columns), 8 + (_CELL_HEIGHT + 26) * (i // columns)
        out.append(_render_histogram(worker, counts[worker], bins, step=step, at=(x, y), peak=peak))
    rows = -(-len(binned) // columns)
    return render_figure(
        name_figure("staleness", narrow=narrow),
        "Staleness of pushes per worker",
        "; ".join(f"{worker}: {describe_staleness(taus)}" for worker, taus in counts.items()) + ".",
        size=(320.0 if narrow else 16 + (_CELL_WIDTH + 6) * columns, 12 + (_CELL_HEIGHT + 26) * rows),
        body="".join(out),
        standalone=standalone,
    )


def bin_counts(taus: Mapping[int, int], step: int, longest: int) -> list[int]:
    """Count the pushes in each bin of `step` values of staleness, from 0 to `longest`."""
    bins = [0] * (longest // step + 1)
    for tau, pushes in taus.items():
        bins[tau // step] += pushes
    return bins


def describe_staleness(taus: Mapping[int, int]) -> str:
    mean = sum(tau * pushes for tau, pushes in taus.items()) / sum(taus.values())
    return f"mean {mean:.2f}, max {max(tau for tau, pushes in taus.items() if pushes)}"


def _render_histogram(
    worker: str, taus: Mapping[int, int], bins: list[int], *, step: int, at: tuple[float, float], peak: float
) -> str:
    x, y = at
    total = sum(bins)
    foot, room = y + _CELL_HEIGHT - 16, _CELL_HEIGHT - 52
    wide = min((_CELL_WIDTH - 30) / len(bins), 34.0)
    out = [
        text_line(x, y + 12, fit_text(worker, 120), "strong"),
        text_line(x + _CELL_WIDTH - 30, y + 12, describe_staleness(taus), "muted small end"),
    ]
    for i, pushes in enumerate(bins):
        high = room * pushes / total / peak
        span = str(i * step) if step == 1 else f"{i * step}–{(i + 1) * step - 1}"
        box = (x + wide * i, foot - high, max(wide - 3, 1.5), high)
        words = f"{worker}, staleness {span}: {pushes} pushes, {format_percent(pushes / total)}"
        share = ""
        if wide > 30 and pushes:
            share = text_line(box[0] + box[2] / 2, foot - high - 4, format_percent(pushes / total), "muted small mid")
        label = (
            text_line(box[0] + box[2] / 2, foot + 13, str(i * step), "muted small mid")
            if wide > 20 or i % 4 == 0
            else ""
        )
        out.append(item(words, rect(box, "heat", rx=1.5), share) + label if pushes else label)
    out.append(element("path", d=f"M{x:.0f} {foot:.1f}h{_CELL_WIDTH - 30:.0f}", cls="axis"))
    return element("g", *out, data_worker=worker)


_HEAT_HEIGHT, _HEAT_TOP, _HEAT_WIDTH = 22.0, 34.0, 34.0
_MAX_COLUMNS, _MAX_NARROW_COLUMNS = 24, 9
_SUMMARY_WIDTH = 130.0


def render_staleness_heatmap(
    shards: Sequence[Mapping[str, Any]], *, standalone: bool = True, narrow: bool = False
) -> str:
    """Render a heat map with a row for each worker and shard; "" without pushes.

    shards: each with its name and "staleness", worker -> staleness -> pushes. narrow: the name of a row is above it.
    """
    rows = [
        (f"{worker} at {shard['name']}", {int(tau): int(pushes) for tau, pushes in taus.items()})
        for shard in shards
        for worker, taus in shard["staleness"].items()
        if sum(taus.values())
    ]
    if not rows:
        return ""
    longest = max(tau for _, taus in rows for tau in taus)
    step = -(-(longest + 1) // (_MAX_NARROW_COLUMNS if narrow else _MAX_COLUMNS))
    columns = longest // step + 1
    left = 6.0 if narrow else 24.0 + max(90.0, *(measure_text(fit_text(name, 240)) for name, _ in rows))
    end = 308.0 if narrow else left + _HEAT_WIDTH * columns + _SUMMARY_WIDTH
    down, high = (20.0, _HEAT_HEIGHT + 24) if narrow else (0.0, _HEAT_HEIGHT)
    top = _HEAT_TOP + (16 if narrow else 0)
    out = [text_line(12, 20, "% by staleness", "muted small"), text_line(end, 20, "mean, max", "muted small end")]
    out += [
        text_line(left + _HEAT_WIDTH * (i + 0.5), top - 14, str(i * step), "muted small mid") for i in range(columns)
    ]
    for i, (name, taus) in enumerate(rows):
        y = top + high * i
        cells = _render_cells(name, bin_counts(taus, step, longest), step=step, at=(left, y + down))
        label = text_line(12, y + 15, fit_text(name, 190 if narrow else 240), "small")
        out.append(element("g", label, *cells, text_line(end, y + 15, describe_staleness(taus), "muted small end")))
    return render_figure(
        name_figure("heat", narrow=narrow),
        "Staleness of pushes per worker and shard",
        "; ".join(f"{name}: {describe_staleness(taus)}" for name, taus in rows) + ".",
        size=(end + 12, top + high * len(rows) + 8),
        body="".join(out),
        standalone=standalone,
    )


def _render_cells(name: str, bins: Sequence[int], *, step: int, at: tuple[float, float]) -> list[str]:
    """Render the cells of a row, beside each other from a place on."""
    (x, y), total = at, sum(bins)
    out = []
    for i, pushes in enumerate(bins):
        share = pushes / total
        spot = x + _HEAT_WIDTH * i + 1
        if not pushes:
            out.append(element("circle", cx=spot + _HEAT_WIDTH / 2 - 1, cy=y + _HEAT_HEIGHT / 2, r=1.5, cls="track"))
            continue
        span = str(i * step) if step == 1 else f"{i * step}–{(i + 1) * step - 1}"
        words = f"{name}, staleness {span}: {pushes} pushes, {format_percent(share)}"
        dark = share > 0.5
        opacity = 0.6 + 0.4 * share if dark else 0.1 + 0.7 * share
        box = element(
            "rect",
            x=spot,
            y=y + 1,
            width=_HEAT_WIDTH - 2,
            height=_HEAT_HEIGHT - 2,
            rx=3,
            cls="heat",
            fill_opacity=opacity,
        )
        colour = "mid small heatstrong" if dark else "mid small"
        number = text_line(spot + _HEAT_WIDTH / 2 - 1, y + 15, format_percent(share).rstrip(" %"), colour)
        out.append(item(words, box, number))
    return out


_BAR_ROW, _BARS_TOP = 26.0, 34.0
_PARTS = (("fetch_s", "d1", "for parameters"), ("push_s", "d4", "to push"))


def render_waiting_bars(workers: Sequence[Mapping[str, Any]], *, standalone: bool = True, narrow: bool = False) -> str:
    """Render how long each worker waited for the shards; "" if nobody has trained.

    workers: each with its name, seconds, fetch_s and push_s.
    """
    active = [worker for worker in workers if worker["seconds"] > 0]
    if not active:
        return ""
    left = 8.0 if narrow else 28.0 + max(measure_text(fit_text(str(worker["name"]), 180)) for worker in active)
    width, row = (304.0, 44.0) if narrow else (420.0, _BAR_ROW)
    out, x = [], left
    for _, colour, label in _PARTS:
        out += [rect((x, 12, 10, 10), colour, rx=2), text_line(x + 16, 21, label, "muted small")]
        x += 40 + measure_text(label, 11)
    out += [_render_bar(worker, (left, _BARS_TOP + row * i, width), narrow=narrow) for i, worker in enumerate(active)]
    return render_figure(
        name_figure("waits", narrow=narrow),
        "Waiting for the shards",
        " ".join(f"{_describe_wait(worker)}." for worker in active),
        size=(320.0 if narrow else left + width + 130, _BARS_TOP + row * len(active) + 6),
        body="".join(out),
        standalone=standalone,
    )


def _render_bar(worker: Mapping[str, Any], place: tuple[float, float, float], *, narrow: bool) -> str:
    """Render the bar of a worker after its name, or on phones below it. place: x, y and width."""
    seconds, (x, y, width) = worker["seconds"], place
    name = text_line(8 if narrow else 12, y + 13, fit_text(str(worker["name"]), 180))
    share = format_percent((worker["fetch_s"] + worker["push_s"]) / seconds)
    waited = format_seconds(worker["fetch_s"] + worker["push_s"])
    label = text_line(x + width if narrow else x + width + 118, y + 13, f"{share}, {waited}", "small end")
    y += 18 if narrow else 4
    parts, start = [rect((x, y, width, 11), "track", rx=2)], x
    for part, colour, _ in _PARTS:
        wide = min(width * worker[part] / seconds, x + width - start)
        parts.append(rect((start, y, wide, 11), colour, rx=2))
        start += wide
    return item(_describe_wait(worker), name, *parts, label)


def _describe_wait(worker: Mapping[str, Any]) -> str:
    waits = f"{format_seconds(worker['fetch_s'])} for parameters and {format_seconds(worker['push_s'])} to push"
    return f"{worker['name']} waited {waits} in {format_seconds(worker['seconds'])}"
