"""What a notebook shows of a placement: a heading, the verdict and a table. `cutset show` has the pictures."""

from collections.abc import Sequence
from html import escape


def render_summary(title: str, verdict: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return HTML that is part of a page. head: the titles of the columns; rows: their texts."""
    body = "".join(_render_row("td", row) for row in rows)
    table = f"<table><thead>{_render_row('th', head)}</thead><tbody>{body}</tbody></table>"
    return f"<div><h4>{escape(title)}</h4><p>{escape(verdict)}</p>{table}</div>"


def _render_row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
