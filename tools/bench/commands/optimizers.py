"""`cutset bench optimizers`: how fast each optimizer updates parameters."""

import click

from .options import json_option, rounds_option


@click.command("optimizers")
@rounds_option(7)
@json_option
def optimizers_command(rounds: int, as_json: bool) -> None:
    """Measure how fast each optimizer applies 100 MB of gradients on one thread.

    Times the optimizer alone, and a push as a shard applies it, which also checks that all values are finite. Compares
    both with memcpy. Prints medians; an optimizer and memcpy are timed once in each round.
    """
    from ..bench_table import show_tables
    from ..transport.optimizers import measure, tabulate

    show_tables(tabulate(measure(rounds=rounds)), as_json=as_json)
