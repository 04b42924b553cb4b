"""Prints the rows of `cutset bench plan --graphs`, as a table or as JSON."""

import dataclasses
import json
from collections.abc import Sequence

from rich.text import Text

from ...report.console import make_console, print_columns
from .benchmark import GraphRow

COLUMNS = ("graph", "objective is", "devices", "objective", "contiguous", "one machine", "reference", "seconds")


def print_rows(rows: Sequence[GraphRow]) -> None:
    """Print one line a row, and below the table what its signs mean."""
    console = make_console()
    print_columns(console, COLUMNS, [_cells(row) for row in rows], left=2)
    if any(row.contiguous is not None and not row.proven for row in rows):
        console.print(Text("~ the best contiguous placement found; too many there are to prove that it is the best"))
    console.print(Text("reference: what others have published for a graph of that name; not used to find ours"))


def as_json_text(rows: Sequence[GraphRow]) -> str:
    """The rows with their placements."""
    return json.dumps({"rows": [dataclasses.asdict(row) for row in rows]})


def _cells(row: GraphRow) -> list[str]:
    devices = str(row.machines) + (f" + {row.cpus} CPU" if row.cpus else "")
    found = "-" if row.contiguous is None else f"{'' if row.proven else '~'}{_number(row.contiguous)}"
    one = "-" if row.one_machine is None else _number(row.one_machine)
    known = ", ".join(f"{who} {_number(value)}" for who, value in row.reference.items()) or "-"
    return [row.graph, row.unit, devices, _number(row.objective), found, one, known, f"{row.seconds:.1f}"]


def _number(value: float) -> str:
    """Whole numbers as they are, others with four places."""
    return str(int(value)) if float(value).is_integer() and abs(value) >= 1 else f"{value:.4f}"
