"""`cutset bench data`: training speed with transforms of samples that cost as much as a step, and without."""

import click

from ...strict_json import to_json
from .options import json_option, print_progress, rounds_option


@click.command("data")
@rounds_option(5, help="Rounds; each trains once with each transform, in turn.")
@click.option(
    "--width",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    help="Units of each layer of the net; with twice as many, a step takes some four times as long.",
)
@json_option
def data_command(rounds: int, width: int, as_json: bool) -> None:
    """Measure what transforms of samples cost that take as long as the training itself.

    Trains in one process, by two replicas, and in a plain loop over torch's DataLoader: without transforms, with one
    that waits, and with one that computes. Beside them, steps of plain torch while other processes only wait, which
    shows what the ends of waits cost by themselves.
    Exit code 4 if a goal is missed.
    """
    from ..training.data_speed import measure, tabulate

    found = measure(rounds=rounds, width=width, on_progress=print_progress)
    table = tabulate(found)
    if as_json:
        click.echo(to_json(table.to_dict()))
    else:
        table.print()
    if any(one.reached is False for one in found):
        raise SystemExit(4)
