"""`cutset bench ps`: how fast parameters travel to shards and back."""

import click

from .options import json_option, rounds_option


@click.command("ps")
@rounds_option(7)
@json_option
def ps_command(rounds: int, as_json: bool) -> None:
    """Measure how fast 100 MB of parameters travel to shards and back, updates applied.

    Times pushes, pulls and both over plain TCP, encrypted TCP and shared memory, to one shard and to two, with SGD and
    Adagrad. Compares them with memcpy, a raw socket one way and both ways, and gloo's all_reduce. Prints medians; all
    are timed once in each round.
    """
    from ..bench_table import show_tables
    from ..transport.parameter_server import measure
    from ..transport.parameter_server_goals import tabulate_goals, tabulate_rates

    rates = measure(rounds=rounds)
    show_tables(tabulate_rates(rates), tabulate_goals(rates), as_json=as_json)
