"""The folder of a figure: the picture, the table and the data, which replace those of an earlier run alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ....errors import UsageError
from ...output_file import FIGURE_DATA, FIGURE_DATA_MARK, PICTURE, TABLE, TABLE_MARK, check_output, write_output
from ...strict_json import to_json
from ..bench_table import BenchTable, show_tables

KINDS = {"svg": PICTURE, "md": TABLE, "json": FIGURE_DATA}


def check_folder(folder: Path, name: str) -> Path:
    """Make the folder of a figure; UsageError where it cannot be made, or has files of these names that are others'."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("E222", f"cannot make folder {folder}: {error.strerror}", fix="name another folder") from error
    for suffix, kind in KINDS.items():
        check_output(folder / f"{name}.{suffix}", kind)
    return folder


def write_figure(folder: Path, name: str, svg: str, tables: Sequence[BenchTable[Any]], *, as_json: bool) -> None:
    """Write picture, table and data of a figure, and show the tables."""
    data = {FIGURE_DATA_MARK: name, **{key: value for table in tables for key, value in table.to_dict().items()}}
    text = "\n".join(table.to_markdown() for table in tables)
    write_output(folder / f"{name}.svg", svg, PICTURE)
    write_output(folder / f"{name}.md", f"{TABLE_MARK}\n{text}", TABLE)
    write_output(folder / f"{name}.json", to_json(data, indent=1), FIGURE_DATA)
    show_tables(*tables, as_json=as_json)
    click.echo(f"written to {folder}", err=True)
