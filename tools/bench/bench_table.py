"""`BenchTable`: the results of a benchmark, to print on a terminal, as JSON, as HTML and as Markdown.

Every benchmark returns its results as one table or a few. A column says once how its value is obtained from a row, how
it is formatted for people, and under which key programs find it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import click
import msgspec
from rich.console import Console
from rich.text import Text

from ..report import html
from ..report.console import make_console, print_columns
from ..strict_json import to_json
from ..units import NONE

R = TypeVar("R")


@dataclass(frozen=True)
class Column(Generic[R]):
    """One column of a table whose rows are of type R.

    heading: above the column; "" for a value that stands in the JSON alone. key: the name of the value in the JSON; ""
    for a column that is only printed. value: what obtains the value from a row, by default the row's attribute `key`.
    format: how a value is printed; None is printed as a dash.
    """

    heading: str
    key: str = ""
    format: Callable[[Any], str] = str
    value: Callable[[R], Any] | None = None
    align: Literal["left", "right"] = "right"

    def get_value(self, row: R) -> Any:
        """Return the value of this column in a row."""
        return getattr(row, self.key) if self.value is None else self.value(row)

    def format_cell(self, row: R) -> str:
        """Return the value of this column in a row as it is printed."""
        value = self.get_value(row)
        return NONE if value is None else self.format(value)


@dataclass(frozen=True)
class BenchTable(Generic[R]):
    """Columns, rows, and the notes below them. name: the key of the rows in the JSON. facts: more keys beside it."""

    columns: Sequence[Column[R]]
    rows: Sequence[R]
    title: str = ""
    notes: Sequence[str] = ()
    name: str = "rows"
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def headings(self) -> list[str]:
        """The headings of the printed columns."""
        return [column.heading for column in self._printed]

    @property
    def _printed(self) -> list[Column[R]]:
        return [column for column in self.columns if column.heading]

    def format_cells(self) -> list[list[str]]:
        """Return the printed cells, row by row."""
        return [[column.format_cell(row) for column in self._printed] for row in self.rows]

    def print(self, console: Console | None = None) -> None:
        """Print title, table and notes."""
        console = console or make_console()
        if self.title:
            console.print(Text(self.title, style="bold"))
        right = [column.align == "right" for column in self._printed]
        print_columns(console, self.headings, self.format_cells(), right=right)
        for note in self.notes:
            console.print(Text(note))

    def to_dict(self) -> dict[str, Any]:
        """Return the facts, and the rows by the keys of their columns (if any has one), as plain data for JSON."""
        keyed = [column for column in self.columns if column.key]
        rows = [{column.key: column.get_value(row) for column in keyed} for row in self.rows]
        facts = {**self.facts, self.name: rows} if keyed else dict(self.facts)
        plain: dict[str, Any] = msgspec.to_builtins(facts, enc_hook=_drop_unit)
        return plain

    def to_html(
        self, *, best: Callable[[R], bool] = lambda row: False, bad: Callable[[R], Sequence[str]] = lambda row: ()
    ) -> str:
        """Return the table and its notes as markup. best: whether to mark a row; bad: the headings of its red cells."""
        columns = [html.TableColumn(column.heading, number=column.align == "right") for column in self._printed]
        rows = [
            html.TableRow(tuple(cells), best=best(row), bad=tuple(self.headings.index(name) for name in bad(row)))
            for row, cells in zip(self.rows, self.format_cells(), strict=True)
        ]
        return html.render_table(columns, rows) + html.render_notes(self.notes)

    def to_markdown(self) -> str:
        """Return the table and its notes as Markdown."""
        sides = ["---:" if column.align == "right" else "---" for column in self._printed]
        lines = [f"| {' | '.join(cells)} |" for cells in (self.headings, sides, *self.format_cells())]
        return "\n".join([*lines, "", *self.notes]) + "\n"


def _drop_unit(value: object) -> float:
    """Return a quantity of partition/cluster/quantities.py as the number it is. Raises TypeError for anything else."""
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"a table for JSON holds a {type(value).__name__}")


def show_tables(*tables: BenchTable[Any], as_json: bool) -> None:
    """Print tables one below the other, or all of them as one JSON object."""
    if as_json:
        click.echo(to_json({key: value for table in tables for key, value in table.to_dict().items()}, indent=1))
        return
    console = make_console()
    for table in tables:
        table.print(console)


def format_rate(bytes_per_s: float) -> str:
    """Return a rate in decimal gigabytes per second: 3.2e9 -> "3.20 GB/s"."""
    return f"{bytes_per_s / 1e9:.2f} GB/s"
