"""`cutset bench channel`, `ps` and `optimizers`: how fast tensors travel, and parameters travel and are updated."""

from pathlib import Path

import click

from ...path_option import PathOption
from .options import json_option, rounds_option


@click.command("channel")
@rounds_option(7)
@json_option
def channel_command(rounds: int, as_json: bool) -> None:
    """Measure how fast tensors travel between two processes of this machine.

    Compares memcpy within one process, a raw socket, torch's gloo, and our channel over plain TCP, over encrypted TCP
    and over shared memory. Prints medians; all transports are timed once in each round.
    """
    from ..bench_table import show_tables
    from ..transport.channel import measure, tabulate

    show_tables(tabulate(measure(rounds=rounds)), as_json=as_json)


@click.command("ps")
@rounds_option(7)
@click.option("--pslite", type=PathOption(), help="A program built with ps-lite, to run in turn, and compare.")
@json_option
def ps_command(rounds: int, pslite: Path | None, as_json: bool) -> None:
    """Measure how fast 100 MB of parameters travel to shards and back, updates applied.

    Times pushes, pulls and both over plain TCP, encrypted TCP and shared memory, to one shard and to two, with SGD and
    Adagrad. Compares them with memcpy, a raw socket one way and both ways, and gloo's all_reduce. Prints medians; all
    are timed once in each round.
    """
    from ..bench_table import show_tables
    from ..transport.parameter_server_goals import tabulate_goals, tabulate_rates
    from ..transport.pslite import measure_beside

    rates = measure_beside(pslite, rounds=rounds)
    show_tables(tabulate_rates(rates), tabulate_goals(rates), as_json=as_json)


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
