"""A small SVG writer: tags with escaped attributes, text that fits, machine colours, and the frame of a figure."""

import html
import math

from .theme import FIGURE_CSS, HATCHES, MACHINE_COLOURS

Point = tuple[float, float]
Rect = tuple[float, float, float, float]

_NARROW = frozenset("iljtfr.,:;|'!()[] /")
_WIDE = frozenset("mwMW@%")


def number(value: float) -> str:
    """Two decimals at most, no trailing zeros, never an exponent."""
    if not math.isfinite(value):
        raise ValueError(f"a coordinate is {value}")
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def tag(name: str, *body: str, **attributes: str | float | None) -> str:
    """One element. `cls` is class, underscores become hyphens, None is left out. The body is markup already."""
    parts = [name]
    for key, value in attributes.items():
        if value is None:
            continue
        shown = number(value) if isinstance(value, int | float) else html.escape(value)
        parts.append(f'{"class" if key == "cls" else key.replace("_", "-")}="{shown}"')
    opening = " ".join(parts)
    return f"<{opening}>{''.join(body)}</{name}>" if body else f"<{opening}/>"


def words(x: float, y: float, content: str, cls: str = "", **attributes: str | float | None) -> str:
    """A line of text with its baseline at y."""
    return tag("text", html.escape(content), x=x, y=y, cls=cls or None, **attributes)


def rect(box: Rect, cls: str, *body: str, rx: float | None = None) -> str:
    x, y, width, height = box
    return tag("rect", *body, x=x, y=y, width=max(width, 0), height=max(height, 0), rx=rx, cls=cls)


def tooltip(content: str) -> str:
    return tag("title", html.escape(content))


def text_width(content: str, size: float = 12) -> float:
    """About how wide a line is, in the units of the picture."""
    ems = sum(0.33 if c in _NARROW else 0.86 if c in _WIDE else 0.66 if c.isupper() else 0.56 for c in content)
    return ems * size


def fit(content: str, width: float, size: float = 12) -> str:
    """The line cut to `width` with an ellipsis where it is too long."""
    if text_width(content, size) <= width:
        return content
    kept = content
    while kept and text_width(kept + "…", size) > width:
        kept = kept[:-1]
    return kept.rstrip() + "…" if kept.strip() else ""


def fit_end(content: str, width: float, size: float = 12) -> str:
    """As `fit`, but keeping the end, which tells modules apart."""
    kept = fit(content[::-1], width, size)
    return kept[::-1]


def tiles(figure: str, machine: int, rects: list[Rect], cls: str = "") -> str:
    """Rectangles in a machine's colour, with its hatch where the colours have run out."""
    path = "".join(f"M{number(x)} {number(y)}h{number(w)}v{number(h)}h{number(-w)}z" for x, y, w, h in rects)
    solid = tag("path", d=path, cls=f"f{machine % MACHINE_COLOURS} {cls}".strip())
    turn = machine // MACHINE_COLOURS
    if turn == 0:
        return solid
    return solid + tag("path", d=path, fill=f"url(#{figure}-hatch{(turn - 1) % HATCHES})")


def chip(figure: str, x: float, y: float, machine: int, *, size: float = 16) -> str:
    """A machine's colour with its number, as in legends and row heads."""
    label = words(x + size / 2, y + size / 2 + 4, str(machine), f"n{machine % MACHINE_COLOURS} mid small")
    return tiles(figure, machine, [(x, y, size, size)]) + label


def figure(
    name: str,
    title: str,
    description: str,
    *,
    size: tuple[float, float],
    body: str,
    machines: int = 0,
    standalone: bool = True,
) -> str:
    """A whole SVG. name: prefix of its ids, unique in a page. standalone: brings its own style and background."""
    width, height = math.ceil(size[0]), math.ceil(size[1])
    style = tag("style", FIGURE_CSS) + rect((0, 0, width, height), "paper", rx=10) if standalone else ""
    return tag(
        "svg",
        tag("title", html.escape(title), id=f"{name}-title"),
        tag("desc", html.escape(description), id=f"{name}-desc"),
        style,
        _hatches(name, machines),
        body,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
        cls="figure",
    )


def _hatches(name: str, machines: int) -> str:
    if machines <= MACHINE_COLOURS:
        return ""
    marks = (
        tag("path", d="M-1 7L7 -1M-1 1L1 -1M5 7L7 5", cls="hatch"),
        tag("circle", cx=3, cy=3, r=1.4, cls="hatchdot"),
        tag("path", d="M-1 -1L7 7M-1 5L1 7M5 -1L7 1", cls="hatch"),
    )
    patterns = [
        tag("pattern", mark, id=f"{name}-hatch{i}", width=6, height=6, patternUnits="userSpaceOnUse")
        for i, mark in enumerate(marks)
    ]
    return tag("defs", *patterns)
