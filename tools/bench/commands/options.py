"""The options that several commands of `cutset bench` share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Add --json, which prints all results for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print all results as JSON.")(command)


def rounds_option(
    default: int, *, minimum: int = 1, help: str = "Rounds; each times everything once."
) -> Callable[[F], F]:
    """Add --rounds."""
    return click.option("--rounds", type=click.IntRange(min=minimum), default=default, show_default=True, help=help)


def print_progress(line: str) -> None:
    """Print a line of progress to stderr, so that stdout has the results alone."""
    click.echo(line, err=True)
