"""The parts of a self-contained HTML page: skeleton, cards, key facts and tables. All text is escaped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ..figures.theme import FIGURE_CSS, PAGE_CSS


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


def render_page(title: str, body: str) -> str:
    """Render one HTML file that needs nothing else. body is markup."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{FIGURE_CSS}{PAGE_CSS}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def render_header(title: str, verdict: str) -> str:
    """Render the top of a page."""
    return (
        f'<header><div class="brand">cutset</div><h1>{escape(title)}</h1>'
        f'<p class="verdict">{escape(verdict)}</p></header>\n'
    )


def render_card(title: str, lead: str, body: str, *, scroll: bool = False) -> str:
    """Render a section with a heading and a line of explanation; "" if there is nothing to show. body is markup."""
    if not body:
        return ""
    content = f'<div class="scroll">{body}</div>' if scroll else body
    explanation = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return f'<section class="card"><h2>{escape(title)}</h2>{explanation}{content}</section>\n'


def render_facts(items: Sequence[tuple[str, str, str]]) -> str:
    """Render key numbers, given as (name, value, remark)."""
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(remark)}</small></dd></div>"
        for name, value, remark in items
    )
    return f'<dl class="facts">{cells}</dl>\n'


def render_table(columns: Sequence[TableColumn], rows: Sequence[TableRow]) -> str:
    """Render a table that scrolls if it is too wide."""
    head = "".join(f'<th scope="col"{_render_side(column)}>{escape(column.label)}</th>' for column in columns)
    body = "".join(_render_row(columns, row) for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _render_side(column: TableColumn) -> str:
    return ' class="number"' if column.number else ""


def _render_row(columns: Sequence[TableColumn], row: TableRow) -> str:
    label = f'<span class="tag">{escape(row.tag)}</span>' if row.tag else ""
    cells = [f'<th scope="row">{escape(row.cells[0])}{label}</th>']
    for i, (column, cell) in enumerate(zip(columns[1:], row.cells[1:], strict=True), start=1):
        classes = " ".join(name for name, on in (("number", column.number), ("bad", i in row.bad)) if on)
        cells.append(f'<td class="{classes}">{escape(cell)}</td>' if classes else f"<td>{escape(cell)}</td>")
    opening = '<tr class="best">' if row.best else "<tr>"
    return f"{opening}{''.join(cells)}</tr>"


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
