"""The command `cutset scale`: more or fewer replicas while a run trains."""

from pathlib import Path

import click


@click.command("scale")
@click.argument("folder", metavar="RUN_FOLDER", type=click.Path(path_type=Path))
@click.option("--replicas", type=int, required=True, help="Replicas to train with from now on.")
def scale(folder: Path, replicas: int) -> None:
    """Change the number of replicas of a running job.

    RUN_FOLDER is where it trains. New replicas join at once; leaving ones finish their current batches. The job
    says when it happens.
    """
    from ..training.scale_requests import POLL_S, request_replicas

    before = request_replicas(folder, replicas)
    click.echo(
        f"asked the run in {folder} for {replicas} replicas instead of {before.replicas}; it looks every {POLL_S:g} s"
    )
