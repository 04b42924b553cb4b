"""`cutset bench methods`: all methods of data parallelism and plain torch, in one table."""

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
