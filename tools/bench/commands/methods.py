"""`cutset bench methods` and `cutset bench defaults`: all methods beside plain torch, or with their defaults alone."""

import tempfile
from pathlib import Path

import click

from ...output_file import TABLE, TABLE_MARK, check_output, write_output
from ...path_option import PathOption
from .options import json_option, print_progress, rounds_option


@click.command("methods")
@click.option("--data", required=True, help="The MNIST files, as mnist:DIR.")
@click.option(
    "--epochs", type=click.IntRange(min=1), default=5, show_default=True, help="Epochs of the training with tests."
)
@rounds_option(3, minimum=0, help="Rounds of three epochs without tests, for the speed.")
@click.option(
    "--methods", "names", default="", metavar="NAME,...", help="Only these methods or rows of the table, beside torch."
)
@click.option("-o", "--out", type=PathOption(may_be_folder=False), help="Write the table (Markdown).")
@json_option
def methods_bench_command(data: str, epochs: int, rounds: int, names: str, out: Path | None, as_json: bool) -> None:
    """Train a perceptron on MNIST by every method, and compare accuracy, speed, staleness and bytes sent.

    Each method trains the 784-512-512-10 perceptron with two replicas. Compares them with one process of one thread and
    of two, torch's DistributedDataParallel on gloo, and torch's Hogwild. The rate of each method is fixed; the notes
    say how it was found.
    """
    from ..bench_table import show_tables
    from ..training.methods import make_contestants, measure
    from ..training.methods_table import tabulate
    from ..training.settings import find_settings

    if out is not None:
        check_output(out, TABLE)
    settings = find_settings([name.strip() for name in names.split(",") if name.strip()])
    with tempfile.TemporaryDirectory(prefix="cutset-bench-") as folder:
        contestants = make_contestants(data, Path(folder), settings)
        table = tabulate(measure(contestants, epochs=epochs, rounds=rounds, tell=print_progress))
    if out is not None:
        write_output(out, f"{TABLE_MARK}\n{table.to_markdown()}", TABLE)
    show_tables(table, as_json=as_json)


@click.command("defaults")
@click.option("--data", help="The MNIST files, as mnist:DIR; without it the digits of the package alone.")
@click.option("--methods", default="", metavar="NAME,...", help="Only these methods.")
@click.option("--replicas", default="2,4", show_default=True, metavar="N,...", help="Replicas of each method.")
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each, by seed.")
@click.option("--no-digits", is_flag=True, help="Leave out the digits of the package.")
@click.option("-o", "--out", type=PathOption(may_be_folder=False), help="Write the table (Markdown).")
@json_option
def defaults_command(
    data: str | None, methods: str, replicas: str, seeds: int, no_digits: bool, out: Path | None, as_json: bool
) -> None:
    """Train by every method, with nothing else named, and compare the accuracy with that of one process."""
    from ....ps.methods.registry import METHODS, parse_method
    from ..bench_table import show_tables
    from ..training.defaults import DIGITS, MNIST, measure_defaults, tabulate_defaults

    if out is not None:
        check_output(out, TABLE)
    names = [parse_method(name.strip()).name for name in methods.split(",") if name.strip()] or list(METHODS)
    tasks = [*([] if no_digits else [(DIGITS, None)]), *([(MNIST, data)] if data else [])]
    counts = [_parse_count(text) for text in replicas.split(",")]
    rows = measure_defaults(tasks, methods=names, replicas=counts, seeds=seeds, tell=print_progress)
    table = tabulate_defaults(rows)
    if out is not None:
        write_output(out, f"{TABLE_MARK}\n{table.to_markdown()}", TABLE)
    show_tables(table, as_json=as_json)


def _parse_count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise click.BadParameter(f"{text!r} is no number of replicas", param_hint="--replicas")
    return int(text)
