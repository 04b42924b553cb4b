"""A small SVG writer: elements with escaped attributes, text that fits, machine colours, and the frame of a figure."""

import html
import math

from .theme import FIGURE_CSS, HATCHES, MACHINE_COLOURS, PLAIN_COLOURS

Point = tuple[float, float]
Rect = tuple[float, float, float, float]

_NARROW = frozenset("iljtfr.,:;|'!()[] /")
_WIDE = frozenset("mwMW@%")
# Lines up, a grid of crosses, and lines down, in a square of 6.
_HATCHES = ("M-1 7L7 -1M-1 1L1 -1M5 7L7 5", "M3 1.5v3M1.5 3h3", "M-1 -1L7 7M-1 5L1 7M5 -1L7 1")


def format_number(value: float) -> str:
    """Return a coordinate with two decimals at most, no trailing zeros, and never an exponent."""
    if not math.isfinite(value):
        raise ValueError(f"a coordinate is {value}")
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def element(name: str, *body: str, **attributes: str | float | None) -> str:
    """Return one element. `cls` is class, underscores become hyphens, None is left out. The body is markup already."""
    parts = [name]
    for key, value in attributes.items():
        if value is None:
            continue
        text = format_number(value) if isinstance(value, int | float) else html.escape(value)
        parts.append(f'{"class" if key == "cls" else key.replace("_", "-")}="{text}"')
    opening = " ".join(parts)
    return f"<{opening}>{''.join(body)}</{name}>" if body else f"<{opening}/>"


def text_line(x: float, y: float, content: str, cls: str = "", **attributes: str | float | None) -> str:
    """Return a line of text with its baseline at y."""
    return element("text", html.escape(content), x=x, y=y, cls=cls or None, **attributes)


def rect(box: Rect, cls: str, *body: str, rx: float | None = None) -> str:
    """Return a rectangle; negative sizes become 0."""
    x, y, width, height = box
    return element("rect", *body, x=x, y=y, width=max(width, 0), height=max(height, 0), rx=rx, cls=cls)


def tooltip(content: str) -> str:
    """Return the title element that browsers show on hover."""
    return element("title", html.escape(content))


def item(description: str, *body: str, cls: str = "", **attributes: str | float | None) -> str:
    """Return a part of a figure with a description, which pages show of what the pointer or the keyboard is on."""
    name = f"item {cls}".strip()
    return element("g", tooltip(description), *body, role="img", tabindex="-1", cls=name, **attributes)


def measure_text(content: str, size: float = 12) -> float:
    """Estimate how wide a line is, in the units of the picture: as in DejaVu Sans, the widest of the usual fonts."""
    ems = sum(0.37 if c in _NARROW else 0.92 if c in _WIDE else 0.7 if c.isupper() else 0.62 for c in content)
    return ems * size


def fit_text(content: str, width: float, size: float = 12) -> str:
    """Return the line, cut to `width` with an ellipsis if it is too long."""
    if measure_text(content, size) <= width:
        return content
    kept = content
    while kept and measure_text(kept + "…", size) > width:
        kept = kept[:-1]
    return kept.rstrip() + "…" if kept.strip() else ""


def wrap_text(content: str, width: float, size: float = 12) -> list[str]:
    """Return the words in lines that fit."""
    lines = [""]
    for word in content.split():
        longer = f"{lines[-1]} {word}".strip()
        if measure_text(longer, size) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def fit_text_end(content: str, width: float, size: float = 12) -> str:
    """Cut a line as `fit_text` does, but keep the end, which tells modules apart."""
    kept = fit_text(content[::-1], width, size)
    return kept[::-1]


def render_tiles(figure: str, machine: int, rects: list[Rect], cls: str = "") -> str:
    """Render rectangles in a machine's colour, with its hatch once the colours have run out."""
    path = "".join(
        f"M{format_number(x)} {format_number(y)}h{format_number(w)}v{format_number(h)}h{format_number(-w)}z"
        for x, y, w, h in rects
    )
    solid = element("path", d=path, cls=f"f{machine % MACHINE_COLOURS} {cls}".strip())
    if machine < PLAIN_COLOURS:
        return solid
    return solid + element("path", d=path, fill=f"url(#{figure}-hatch{machine})")


def render_chip(figure: str, x: float, y: float, machine: int, *, size: float = 16) -> str:
    """Render a machine's colour with its number, as in legends and row heads."""
    label = text_line(x + size / 2, y + size / 2 + 4, str(machine), f"n{machine % MACHINE_COLOURS} mid small")
    return render_tiles(figure, machine, [(x, y, size, size)]) + label


def name_figure(name: str, *, narrow: bool) -> str:
    """Return the prefix of the ids of a figure, of which a page may have one form for screens and one for phones."""
    return f"{name}-narrow" if narrow else name


def render_figure(
    name: str,
    title: str,
    description: str,
    *,
    size: tuple[float, float],
    body: str,
    machines: int = 0,
    standalone: bool = True,
) -> str:
    """Render a whole SVG. name: prefix of its ids, unique in a page. standalone: with its own style and background."""
    width, height = math.ceil(size[0]), math.ceil(size[1])
    style = element("style", FIGURE_CSS) + rect((0, 0, width, height), "paper", rx=10) if standalone else ""
    return element(
        "svg",
        element("title", html.escape(title), id=f"{name}-title"),
        element("desc", html.escape(description), id=f"{name}-desc"),
        style,
        _render_hatches(name, machines),
        body,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="group",  # not "img", whose parts nobody but the eye can reach
        tabindex=None if standalone else "0",
        aria_labelledby=f"{name}-title",
        aria_describedby=f"{name}-desc",
        cls="figure",
        data_maker="cutset",
    )


def _render_hatches(name: str, machines: int) -> str:
    """Render the hatch of each machine that has one, in the colour of text on the machine's colour."""
    patterns = []
    for machine in range(PLAIN_COLOURS, machines):
        d = _HATCHES[(machine // PLAIN_COLOURS - 1) % HATCHES]
        mark = element("path", d=d, cls=f"h{machine % MACHINE_COLOURS}")
        size = dict.fromkeys(("width", "height"), 6)
        patterns.append(element("pattern", mark, id=f"{name}-hatch{machine}", patternUnits="userSpaceOnUse", **size))
    return element("defs", *patterns) if patterns else ""
