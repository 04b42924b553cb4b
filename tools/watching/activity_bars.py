"""What each process of a run does now and waits for: a bar each."""

from collections.abc import Mapping

from ..figures.svg import fit_text, item, measure_text, name_figure, rect, render_figure, text_line
from ..units import format_percent
from .run_view import RunView

_PARTS = (("computes", "f0"), ("data", "f1"), ("leases", "f4"), ("peers", "f2"), ("shards", "f5"))
_TOP = 34.0


def render_activity(view: RunView, *, standalone: bool = True, narrow: bool = False) -> str:
    """Render the parts of its time that each worker computed and waited in the last seconds; "" where none says it."""
    splits = [(name, split) for name, role in sorted(view.roles.items()) if (split := role.split()) is not None]
    if not splits:
        return ""
    left = 8.0 if narrow else 28.0 + max(measure_text(fit_text(name, 180)) for name, _ in splits)
    width, row = (304.0, 44.0) if narrow else (420.0, 24.0)
    key, key_height = _render_key(left, 320.0 if narrow else left + width + 110)
    out, sentences = [key], list[str]()
    top = _TOP + key_height
    for place, (name, split) in enumerate(splits):
        y = top + row * place
        words = ", ".join(
            f"{'' if part == 'computes' else 'waits for '}{part} {format_percent(split[part])}"
            for part, _ in _PARTS
            if split[part] >= 0.005
        )
        sentences.append(f"{name}: {words}.")
        texts = text_line(8 if narrow else 12, y + 13, fit_text(name, 180)) + text_line(
            left + width if narrow else left + width + 12,
            y + 13,
            f"computes {format_percent(split['computes'])}",
            "small end" if narrow else "small",
        )
        out.append(item(sentences[-1], texts, _render_bar(split, left, y + (18 if narrow else 4), width)))
    return render_figure(
        name_figure("activity", narrow=narrow),
        "What workers do now",
        " ".join(sentences),
        size=(320.0 if narrow else left + width + 110, top + row * len(splits) + 6),
        body="".join(out),
        standalone=standalone,
    )


def _render_key(left: float, width: float) -> tuple[str, float]:
    """Render what the colours mean, and return what height that adds where it takes two lines."""
    out, x, y = list[str](), left, 12.0
    for part, colour in _PARTS:
        label = part if part == "computes" else f"waits for {part}"
        wide = 16 + measure_text(label, 11)
        if x + wide > width - 8:
            x, y = left, y + 20
        out += [rect((x, y, 10, 10), colour, rx=2), text_line(x + 16, y + 9, label, "muted small")]
        x += wide + 16
    return "".join(out), y - 12


def _render_bar(split: Mapping[str, float], x: float, y: float, width: float) -> str:
    bars, start = [rect((x, y, width, 11), "track", rx=2)], x
    for part, colour in _PARTS:
        bars.append(rect((start, y, width * split[part], 11), colour))
        start += width * split[part]
    return "".join(bars)


def find_busy(view: RunView) -> dict[int, float]:
    """Return by machine which part of its time it computes, over the replicas that have it."""
    shares: dict[int, list[float]] = {}
    for name, role in view.roles.items():
        split = role.split()
        if split is not None and name.startswith("worker-"):
            machine = int(name.partition("+")[0].rpartition(".")[2])
            shares.setdefault(machine, []).append(split["computes"])
    return {machine: sum(parts) / len(parts) for machine, parts in sorted(shares.items())}
