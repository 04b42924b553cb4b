"""Staleness per worker and shard: a row for each pair, shaded by how many of its pushes were how stale."""

from collections.abc import Mapping, Sequence
from typing import Any

from .staleness import binned_counts, summary
from .svg import figure, fit, tag, text_width, tooltip, words
from ..units import percent_text

_HIGH, _TOP, _WIDE, _MOST_COLUMNS = 22.0, 34.0, 34.0, 24
_END = 130.0


def staleness_heat(shards: Sequence[Mapping[str, Any]], *, standalone: bool = True) -> str:
    """An SVG; "" without pushes. shards: each with its name and "staleness", worker -> staleness -> pushes."""
    rows = [
        (f"{worker} at {shard['name']}", {int(tau): int(pushes) for tau, pushes in taus.items()})
        for shard in shards
        for worker, taus in shard["staleness"].items()
        if sum(taus.values())
    ]
    if not rows:
        return ""
    longest = max(tau for _, taus in rows for tau in taus)
    step = -(-(longest + 1) // _MOST_COLUMNS)
    columns = longest // step + 1
    left = 24.0 + max(90.0, *(text_width(fit(name, 240)) for name, _ in rows))
    end = left + _WIDE * columns
    out = [words(12, 20, "% by staleness", "muted small"), words(end + _END, 20, "mean, max", "muted small end")]
    out += [words(left + _WIDE * (i + 0.5), 20, str(i * step), "muted tiny mid") for i in range(columns)]
    for i, (name, taus) in enumerate(rows):
        out.append(_row(name, taus, binned_counts(taus, step, longest), step=step, at=(left, _TOP + _HIGH * i)))
    return figure(
        "heat",
        "Staleness of pushes per worker and shard",
        "; ".join(f"{name}: {summary(taus)}" for name, taus in rows) + ".",
        size=(end + _END + 12, _TOP + _HIGH * len(rows) + 8),
        body="".join(out),
        standalone=standalone,
    )


def _row(name: str, taus: Mapping[int, int], bins: Sequence[int], *, step: int, at: tuple[float, float]) -> str:
    (x, y), total = at, sum(bins)
    out = [words(12, y + 15, fit(name, 240), "small")]
    for i, pushes in enumerate(bins):
        share = pushes / total
        spot = x + _WIDE * i + 1
        if not pushes:
            out.append(tag("circle", cx=spot + _WIDE / 2 - 1, cy=y + _HIGH / 2, r=1.5, cls="track"))
            continue
        span = str(i * step) if step == 1 else f"{i * step}–{(i + 1) * step - 1}"
        said = tooltip(f"{name}, staleness {span}: {pushes} pushes, {percent_text(share)}")
        dark = share > 0.5
        opacity = 0.6 + 0.4 * share if dark else 0.1 + 0.7 * share
        box = tag("rect", x=spot, y=y + 1, width=_WIDE - 2, height=_HIGH - 2, rx=3, cls="heat", fill_opacity=opacity)
        colour = "mid tiny heatstrong" if dark else "mid tiny"
        out.append(tag("g", said, box, words(spot + _WIDE / 2 - 1, y + 15, percent_text(share).rstrip(" %"), colour)))
    out.append(words(x + _WIDE * len(bins) + _END, y + 15, summary(taus), "muted small end"))
    return tag("g", *out)
