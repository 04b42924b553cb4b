"""Staleness histograms: updates by others between a worker's fetch and its push, one small chart a worker."""

from collections.abc import Mapping

from .svg import figure, fit, rect, tag, tooltip, words
from ..units import percent_text

_WIDTH, _CELL, _HIGH, _COLUMNS = 1120.0, 270.0, 118.0, 4
_MOST_BARS = 32


def staleness_histograms(staleness: Mapping[str, Mapping[str, int]], *, standalone: bool = True) -> str:
    """Small multiples with one scale, as an SVG; "" without pushes. staleness: worker -> staleness -> pushes."""
    counts = {
        worker: {int(tau): int(pushes) for tau, pushes in taus.items()} for worker, taus in sorted(staleness.items())
    }
    counts = {worker: taus for worker, taus in counts.items() if sum(taus.values())}
    if not counts:
        return ""
    longest = max(tau for taus in counts.values() for tau in taus)
    step = -(-(longest + 1) // _MOST_BARS)
    binned = {worker: binned_counts(taus, step, longest) for worker, taus in counts.items()}
    peak = max(max(bins) / sum(bins) for bins in binned.values())
    out = []
    for i, (worker, bins) in enumerate(binned.items()):
        x, y = 16 + (_CELL + 6) * (i % _COLUMNS), 8 + (_HIGH + 26) * (i // _COLUMNS)
        out.append(_chart(worker, counts[worker], bins, step=step, at=(x, y), peak=peak))
    rows = -(-len(binned) // _COLUMNS)
    return figure(
        "staleness",
        "Staleness of pushes per worker",
        "; ".join(f"{worker}: {summary(taus)}" for worker, taus in counts.items()) + ".",
        size=(_WIDTH, 12 + (_HIGH + 26) * rows),
        body="".join(out),
        standalone=standalone,
    )


def binned_counts(taus: Mapping[int, int], step: int, longest: int) -> list[int]:
    """Pushes per run of `step` values of staleness, from 0 to `longest`."""
    bins = [0] * (longest // step + 1)
    for tau, pushes in taus.items():
        bins[tau // step] += pushes
    return bins


def summary(taus: Mapping[int, int]) -> str:
    mean = sum(tau * pushes for tau, pushes in taus.items()) / sum(taus.values())
    return f"mean {mean:.2f}, max {max(tau for tau, pushes in taus.items() if pushes)}"


def _chart(
    worker: str, taus: Mapping[int, int], bins: list[int], *, step: int, at: tuple[float, float], peak: float
) -> str:
    x, y = at
    total = sum(bins)
    foot, room = y + _HIGH - 16, _HIGH - 52
    wide = min((_CELL - 30) / len(bins), 34.0)
    out = [
        words(x, y + 12, fit(worker, 120), "strong"),
        words(x + _CELL - 30, y + 12, summary(taus), "muted small end"),
    ]
    for i, pushes in enumerate(bins):
        high = room * pushes / total / peak
        span = str(i * step) if step == 1 else f"{i * step}–{(i + 1) * step - 1}"
        box = (x + wide * i, foot - high, max(wide - 3, 1.5), high)
        title = tooltip(f"staleness {span}: {pushes} pushes, {percent_text(pushes / total)}")
        share = ""
        if wide > 28 and pushes:
            share = words(box[0] + box[2] / 2, foot - high - 4, percent_text(pushes / total), "muted tiny mid")
        label = (
            words(box[0] + box[2] / 2, foot + 13, str(i * step), "muted tiny mid") if wide > 14 or i % 4 == 0 else ""
        )
        out.append(tag("g", title, rect(box, "heat", rx=1.5), share, label))
    out.append(tag("path", d=f"M{x:.0f} {foot:.1f}h{_CELL - 30:.0f}", cls="axis"))
    return tag("g", *out, data_worker=worker)
