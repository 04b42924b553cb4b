"""The parts of a self-contained HTML page: skeleton, cards, key facts and tables. All text is escaped."""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from typing import Any

from ..figures.theme import FIGURE_CSS, PAGE_CSS
from .page_script import PAGE_SCRIPT

# What the script says of the part of a figure that the pointer or the keyboard is on.
DETAIL_PANEL = (
    '<aside id="detail" aria-label="Details" hidden><p role="status"></p><span>'
    '<button type="button" hidden>Unfold</button><button type="button">Close</button></span></aside>\n'
)


@dataclass(frozen=True)
class TableColumn:
    """A column of a table. number: whether it is aligned to the right."""

    label: str
    number: bool = False


@dataclass(frozen=True)
class TableRow:
    """A row of plain texts. tag: a word beside the first cell; best: whether marked; bad: positions of red cells."""

    cells: tuple[str, ...]
    tag: str = ""
    best: bool = False
    bad: tuple[int, ...] = ()


def render_page(title: str, body: str, *, css: str = "") -> str:
    """Render one HTML file that needs nothing else, and runs no script but ours. body is markup; css: more of it."""
    style = f"\n{FIGURE_CSS}{PAGE_CSS}{css}"
    policy = (
        f"default-src 'none'; style-src {_hash_source(style)}; script-src {_hash_source(PAGE_SCRIPT)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        f"{render_head(title)}"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<style>{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n{DETAIL_PANEL}<script>{PAGE_SCRIPT}</script>\n</body>\n</html>\n"
    )


def render_head(title: str) -> str:
    """Render how a page begins, up to its style."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n"
    )


def _hash_source(content: str) -> str:
    """Return by which a policy knows an inline style or script."""
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"


def render_header(title: str, verdict: str) -> str:
    """Render the top of a page."""
    return (
        f'<header><div class="brand">cutset</div><h1>{escape(title)}</h1>'
        f'<p class="verdict">{escape(verdict)}</p></header>\n'
    )


def render_card(title: str, lead: str, body: str) -> str:
    """Render a section with a heading and a line of explanation; "" if there is nothing to show. body is markup."""
    if not body:
        return ""
    explanation = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return f'<section class="card"><h2>{escape(title)}</h2>{explanation}{body}</section>\n'


def render_figures(draw: Callable[..., str]) -> str:
    """Render a figure for screens and for phones, of which a page shows the one that fits; "" if there is none.

    draw: with `narrow`, as the functions of figures/.
    """
    wide = draw(standalone=False, narrow=False)
    if not wide:
        return ""
    narrow = draw(standalone=False, narrow=True)
    return f'<div class="scroll wide">{wide}</div><div class="scroll narrow">{narrow}</div>'


def render_scroll(figure: str) -> str:
    """Render a figure of one size, which scrolls where there is no room for it; "" if there is none."""
    return figure and f'<div class="scroll">{figure}</div>'


def render_facts(items: Sequence[tuple[str, str, str]]) -> str:
    """Render key numbers, given as (name, value, remark)."""
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(remark)}</small></dd></div>"
        for name, value, remark in items
    )
    return f'<dl class="facts">{cells}</dl>\n'


def render_table(columns: Sequence[TableColumn], rows: Sequence[TableRow]) -> str:
    """Render a table that scrolls if it is too wide, by keys too; on phones each row is a list of its cells.

    Roles say what the parts are also where their style makes them something else than a table.
    """
    head = "".join(
        f'<th scope="col" role="columnheader"{_render_side(column)}>{escape(column.label)}</th>' for column in columns
    )
    body = "".join(_render_row(columns, row) for row in rows)
    label = escape(f"Table by {columns[0].label}")
    top, rows_in = (
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>',
        f'<tbody role="rowgroup">{body}</tbody>',
    )
    table = f'<table role="table">{top}{rows_in}</table>'
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{label}">{table}</div>'


def _render_side(column: TableColumn) -> str:
    return ' class="number"' if column.number else ""


def _render_row(columns: Sequence[TableColumn], row: TableRow) -> str:
    label = f'<span class="tag">{escape(row.tag)}</span>' if row.tag else ""
    cells = [f'<th scope="row" role="rowheader">{escape(row.cells[0])}{label}</th>']
    for i, (column, cell) in enumerate(zip(columns[1:], row.cells[1:], strict=True), start=1):
        classes = " ".join(name for name, on in (("number", column.number), ("bad", i in row.bad)) if on)
        named = f' class="{classes}"' if classes else ""
        cells.append(f'<td role="cell" data-label="{escape(column.label)}"{named}>{escape(cell)}</td>')
    best = ' class="best"' if row.best else ""
    return f'<tr role="row"{best}>{"".join(cells)}</tr>'


def render_notes(lines: Sequence[str]) -> str:
    """Render lines below a table or figure; "" without lines."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="notes">{items}</ul>' if items else ""


def render_fold(summary: str, body: str) -> str:
    """Render a part that is folded at first. body is markup."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def render_settings(values: Mapping[str, Any]) -> str:
    """Render settings by name."""
    items = "".join(f"<dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd>" for key, value in values.items())
    return f'<dl class="settings">{items}</dl>'
