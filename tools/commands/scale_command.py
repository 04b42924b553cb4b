"""The command `cutset scale`: more or fewer replicas while a run trains."""

from pathlib import Path

import click

from ..training.scale_requests import LOOK_S, wish


@click.command()
@click.argument("folder", metavar="RUN_FOLDER", type=click.Path(path_type=Path))
@click.option("--replicas", type=int, required=True, help="Replicas that shall train from now on.")
def scale(folder: Path, replicas: int) -> None:
    """Let the run that trains in RUN_FOLDER go on with more or fewer replicas.

    New ones fetch the parameters and take part; those that go do what they have begun. The run says when it happens.
    """
    before = wish(folder, replicas)
    click.echo(
        f"asked the run in {folder} for {replicas} replicas instead of {before.replicas}; it looks every {LOOK_S:g} s"
    )
