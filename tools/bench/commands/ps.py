"""`cutset bench ps`: how fast parameters travel to shards and back."""

from pathlib import Path

import click

from ...path_option import PathOption
from .options import json_option, rounds_option


@click.command("ps")
@rounds_option(7)
@click.option("--pslite", type=PathOption(), help="A program built with ps-lite, to run before and after, and compare.")
@json_option
def ps_command(rounds: int, pslite: Path | None, as_json: bool) -> None:
    """Measure how fast 100 MB of parameters travel to shards and back, updates applied.

    Times pushes, pulls and both over plain TCP, encrypted TCP and shared memory, to one shard and to two, with SGD and
    Adagrad. Compares them with memcpy, a raw socket one way and both ways, and gloo's all_reduce. Prints medians; all
    are timed once in each round.
    """
    from ..bench_table import show_tables
    from ..transport.parameter_server import measure
    from ..transport.parameter_server_goals import tabulate_goals, tabulate_rates
    from ..transport.pslite import make_rows, run_pslite

    runs = [run_pslite(pslite)] if pslite else []
    rates = measure(rounds=rounds)
    if pslite:
        rates += make_rows([*runs, run_pslite(pslite)])
    show_tables(tabulate_rates(rates), tabulate_goals(rates), as_json=as_json)
