"""`cutset bench stragglers`: what small portions and backups gain in Sandblaster if a replica is slow."""

import click

from ...strict_json import to_json
from .options import json_option, rounds_option


@click.command("stragglers")
@rounds_option(3, help="Runs with small portions, and as many with one portion each, in turn.")
@json_option
def stragglers_command(rounds: int, as_json: bool) -> None:
    """Measure an iteration of Sandblaster while one of four replicas is 5 times slower.

    Compares small portions with backups of late ones, and one portion for each replica, with the ideal, in which all
    replicas are busy to the end. The processes are real; the time to compute a portion is emulated by sleeping. Then
    simulates the same, event by event, for 2000 replicas.
    """
    from ..training.stragglers import measure, tabulate

    table = tabulate(measure(rounds=rounds))
    if as_json:
        click.echo(to_json(table.to_dict()["rows"]))
    else:
        table.print()
