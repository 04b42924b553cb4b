"""`cutset bench channel`: how fast tensors travel between two processes."""

import click

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
