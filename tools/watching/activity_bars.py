"""What each process of a run does now and waits for: a bar each."""

from ..figures.svg import element, fit_text, measure_text, rect, render_figure, text_line, tooltip
from ..units import format_percent
from .run_view import WAITS, RunView

_PARTS = (("computes", "f0"), ("data", "f1"), ("leases", "f4"), ("peers", "f2"), ("shards", "f5"))
_WIDTH, _ROW, _TOP = 420.0, 24.0, 34.0


def render_activity(view: RunView, *, standalone: bool = True) -> str:
    """Render the parts of its time that each worker computed and waited in the last seconds; "" where none says it."""
    splits = [(name, split) for name, role in sorted(view.roles.items()) if (split := role.split()) is not None]
    if not splits:
        return ""
    left = 28.0 + max(measure_text(fit_text(name, 180)) for name, _ in splits)
    out, x = list[str](), left
    for part, colour in _PARTS:
        if part == WAITS[0]:
            out.append(text_line(x, 21, "waits for", "muted small"))
            x += 10 + measure_text("waits for", 11)
        out += [rect((x, 12, 10, 10), colour, rx=2), text_line(x + 16, 21, part, "muted small")]
        x += 32 + measure_text(part, 11)
    sentences = list[str]()
    for place, (name, split) in enumerate(splits):
        y, start = _TOP + _ROW * place, left
        words = ", ".join(
            f"{'' if part == 'computes' else 'waits for '}{part} {format_percent(split[part])}"
            for part, _ in _PARTS
            if split[part] >= 0.005
        )
        sentences.append(f"{name}: {words}.")
        bars = [text_line(12, y + 13, fit_text(name, 180)), rect((left, y + 4, _WIDTH, 11), "track", rx=2)]
        for part, colour in _PARTS:
            bars.append(rect((start, y + 4, _WIDTH * split[part], 11), colour))
            start += _WIDTH * split[part]
        share = text_line(left + _WIDTH + 12, y + 13, f"computes {format_percent(split['computes'])}", "small")
        out.append(element("g", tooltip(sentences[-1]), *bars, share))
    return render_figure(
        "activity",
        "What workers do now",
        " ".join(sentences),
        size=(left + _WIDTH + 110, _TOP + _ROW * len(splits) + 6),
        body="".join(out),
        standalone=standalone,
    )


def find_busy(view: RunView) -> dict[int, float]:
    """Return by machine which part of its time it computes, over the replicas that have it."""
    shares: dict[int, list[float]] = {}
    for name, role in view.roles.items():
        split = role.split()
        if split is not None and name.startswith("worker-"):
            machine = int(name.partition("+")[0].rpartition(".")[2])
            shares.setdefault(machine, []).append(split["computes"])
    return {machine: sum(parts) / len(parts) for machine, parts in sorted(shares.items())}
