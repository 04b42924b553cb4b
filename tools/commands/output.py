"""The output of commands: JSON for programs with `--json`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Any

import click

from ..strict_json import to_json

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@contextmanager
def keep_stdout(as_json: bool) -> Iterator[None]:
    """With --json, redirect what the user's code prints to stderr, since stdout is for the result."""
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield


def print_json(value: Any, *, indent: int = 0) -> None:
    """Print plain data as JSON."""
    click.echo(to_json(value, indent=indent))
