"""Waiting bars: how much of its time each worker waited for parameters, and for room to push."""

from collections.abc import Mapping, Sequence
from typing import Any

from .svg import figure, fit, rect, tag, text_width, tooltip, words
from ..units import percent_text, seconds_text

_BAR, _ROW, _TOP = 420.0, 26.0, 34.0
_PARTS = (("fetch_s", "d1", "for parameters"), ("push_s", "d4", "to push"))


def waiting_bars(workers: Sequence[Mapping[str, Any]], *, standalone: bool = True) -> str:
    """An SVG; "" where nobody has trained. workers: each with its name, seconds, fetch_s and push_s."""
    shown = [worker for worker in workers if worker["seconds"] > 0]
    if not shown:
        return ""
    left = 28.0 + max(text_width(fit(str(worker["name"]), 180)) for worker in shown)
    out, x = [], left
    for _, colour, label in _PARTS:
        out += [rect((x, 12, 10, 10), colour, rx=2), words(x + 16, 21, label, "muted small")]
        x += 40 + text_width(label, 11)
    out += [_bar(worker, left, _TOP + _ROW * i) for i, worker in enumerate(shown)]
    return figure(
        "waits",
        "Waiting for the shards",
        " ".join(f"{_said(worker)}." for worker in shown),
        size=(left + _BAR + 130, _TOP + _ROW * len(shown) + 6),
        body="".join(out),
        standalone=standalone,
    )


def _bar(worker: Mapping[str, Any], x: float, y: float) -> str:
    seconds, start = worker["seconds"], x
    parts = [words(12, y + 13, fit(str(worker["name"]), 180)), rect((x, y + 4, _BAR, 11), "track", rx=2)]
    for name, colour, _ in _PARTS:
        wide = min(_BAR * worker[name] / seconds, x + _BAR - start)
        parts.append(rect((start, y + 4, wide, 11), colour, rx=2))
        start += wide
    share = percent_text((worker["fetch_s"] + worker["push_s"]) / seconds)
    waited = seconds_text(worker["fetch_s"] + worker["push_s"])
    label = words(x + _BAR + 118, y + 13, f"{share}, {waited}", "small end")
    return tag("g", tooltip(_said(worker)), *parts, label)


def _said(worker: Mapping[str, Any]) -> str:
    waits = f"{seconds_text(worker['fetch_s'])} for parameters and {seconds_text(worker['push_s'])} to push"
    return f"{worker['name']} waited {waits} in {seconds_text(worker['seconds'])}"
