"""The options that several commands of `cutset bench` share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ...path_option import PathOption

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


def jobs_option(command: F) -> F:
    """Add --jobs."""
    help = "Runs at a time, each on one core."
    return click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help=help)(command)


def figure_folder_option(command: F) -> F:
    """Add -o, the folder of a figure."""
    help = "The folder for picture, table, data and runs."
    kind = PathOption()
    return click.option("-o", "--out", type=kind, required=True, metavar="FOLDER", help=help)(command)


def assumed_options(command: F) -> F:
    """Add what is assumed of simulated machines."""
    amount = click.FloatRange(min=0)
    positive = click.FloatRange(min=0, min_open=True)
    for option in (
        click.option("--slowdown", type=positive, default=5.0, show_default=True, help="How much slower those are."),
        click.option("--stragglers", type=click.FloatRange(0, 1), default=0.0, help="The part of slow machines."),
        click.option("--latency", type=amount, default=2e-4, show_default=True, help="Seconds that a message travels."),
        click.option("--bandwidth", type=positive, default=110e6, show_default=True, help="Bytes/s of a card."),
        click.option(
            "--machine-spread",
            type=amount,
            default=0.1,
            show_default=True,
            help="Spread of the logarithm of a machine's pace.",
        ),
        click.option(
            "--spread", type=amount, default=0.3, show_default=True, help="Spread of the logarithm of a step's seconds."
        ),
        click.option("--step", type=positive, default=1.0, show_default=True, help="Seconds that a batch takes."),
    ):
        command = option(command)
    return command
