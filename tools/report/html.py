"""The parts of a self-contained HTML page: skeleton, cards, key facts and tables. All text that comes in is escaped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ..figures.theme import FIGURE_CSS, PAGE_CSS


@dataclass(frozen=True)
class Column:
    """A table's column. number: set to the right."""

    label: str
    number: bool = False


@dataclass(frozen=True)
class Row:
    """A table's row of plain texts. tag: a word beside the first cell; best: marked; bad: positions of cells in red."""

    cells: tuple[str, ...]
    tag: str = ""
    best: bool = False
    bad: tuple[int, ...] = ()


def page(title: str, body: str) -> str:
    """One HTML file that needs nothing else."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{FIGURE_CSS}{PAGE_CSS}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def header(title: str, verdict: str) -> str:
    return (
        f'<header><div class="brand">cutset</div><h1>{escape(title)}</h1>'
        f'<p class="verdict">{escape(verdict)}</p></header>\n'
    )


def card(title: str, lead: str, body: str, *, scroll: bool = False) -> str:
    """A section with a heading and a line of explanation; "" where there is nothing to show. body is markup."""
    if not body:
        return ""
    shown = f'<div class="scroll">{body}</div>' if scroll else body
    explained = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return f'<section class="card"><h2>{escape(title)}</h2>{explained}{shown}</section>\n'


def facts(items: Sequence[tuple[str, str, str]]) -> str:
    """Key numbers as (name, value, remark)."""
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(remark)}</small></dd></div>"
        for name, value, remark in items
    )
    return f'<dl class="facts">{cells}</dl>\n'


def table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    head = "".join(f'<th scope="col"{_side(column)}>{escape(column.label)}</th>' for column in columns)
    body = "".join(_row(columns, row) for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _side(column: Column) -> str:
    return ' class="number"' if column.number else ""


def _row(columns: Sequence[Column], row: Row) -> str:
    label = f'<span class="tag">{escape(row.tag)}</span>' if row.tag else ""
    cells = [f'<th scope="row">{escape(row.cells[0])}{label}</th>']
    for i, (column, cell) in enumerate(zip(columns[1:], row.cells[1:], strict=True), start=1):
        classes = " ".join(name for name, on in (("number", column.number), ("bad", i in row.bad)) if on)
        cells.append(f'<td class="{classes}">{escape(cell)}</td>' if classes else f"<td>{escape(cell)}</td>")
    opening = '<tr class="best">' if row.best else "<tr>"
    return f"{opening}{''.join(cells)}</tr>"


def notes(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="notes">{items}</ul>' if items else ""


def fold(summary: str, body: str) -> str:
    """A part that is closed at first. body is markup."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def settings(values: Mapping[str, Any]) -> str:
    items = "".join(f"<dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd>" for key, value in values.items())
    return f'<dl class="settings">{items}</dl>'
