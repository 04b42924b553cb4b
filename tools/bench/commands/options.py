"""The options that several commands of `cutset bench` share."""

from collections.abc import Callable
from functools import wraps
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


def figure_options(task: str, *, epochs: float, target: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add what all figures in virtual time ask for: the task, with these defaults, and where the figure is written.

    The command gets `common`, the fields of a `FigureRequest`, and `jobs`, `out` and `as_json`.
    """
    fields = ("epochs", "lr", "adaptive_lr", "target", "seed", "assumed")

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def call(task: str, data: str | None, **options: Any) -> None:
            from ...task.load_task import TaskSpec

            common = {"task": TaskSpec(task, data)} | {name: options.pop(name) for name in fields}
            command(common=common, **options)

        wrapped = json_option(figure_folder_option(jobs_option(assumed_options(call))))
        for name, kind, default, help in (
            ("--seed", click.IntRange(0, 2**32 - 1), 0, "Random seed."),
            ("--target", click.FloatRange(0, 1), target, "The test accuracy, the time to which is told."),
            ("--adaptive-lr", float, 0.02, "The rate of Adagrad in one process."),
            ("--lr", float, 0.1, "The rate of SGD in one process."),
            ("--epochs", click.FloatRange(min=0, min_open=True), epochs, "At most."),
        ):
            wrapped = click.option(name, type=kind, default=default, show_default=True, help=help)(wrapped)
        wrapped = click.option("--data", help="The samples, as mnist:DIR.")(wrapped)
        return click.argument("task", default=task)(wrapped)

    return add


def assumed_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add what is assumed of simulated machines; the command gets it as `assumed`, an `Assumptions`."""
    fields = ("step", "spread", "machine_spread", "bandwidth", "latency", "stragglers", "slowdown")

    @wraps(command)
    def call(**options: Any) -> None:
        from ..virtual_time.assumptions import Assumptions

        step, spread, machine_spread, bandwidth, latency, stragglers, slowdown = (options.pop(name) for name in fields)
        slow = {"stragglers": stragglers, "slowdown": slowdown}
        command(assumed=Assumptions(step, spread, machine_spread, bandwidth, latency, **slow), **options)

    amount, positive = click.FloatRange(min=0), click.FloatRange(min=0, min_open=True)
    spreads = "Spread of the logarithm of {}."
    for name, kind, default, help in (
        ("--slowdown", positive, 5.0, "How much slower those are."),
        ("--stragglers", click.FloatRange(0, 1), 0.0, "The part of slow machines."),
        ("--latency", amount, 2e-4, "Seconds that a message travels."),
        ("--bandwidth", positive, 110e6, "Bytes/s of a card, each way."),
        ("--machine-spread", amount, 0.1, spreads.format("a machine's pace")),
        ("--spread", amount, 0.3, spreads.format("a step's seconds")),
        ("--step", positive, 1.0, "Seconds that a machine computes a batch."),
    ):
        call = click.option(name, type=kind, default=default, show_default=True, help=help)(call)
    return call
