"""The command `cutset scale`: changes the number of replicas while a run trains."""

from pathlib import Path

import click

from ..path_option import PathOption
from ..run_folder import LAST


@click.command("scale")
@click.argument("folder", metavar="[RUN_FOLDER]", type=PathOption(), default=LAST)
@click.option("--replicas", type=int, required=True, help="The new number of replicas.")
def scale(folder: Path, replicas: int) -> None:
    """Change the number of replicas of a running job.

    RUN_FOLDER is the run folder of the job, by default runs/last. New replicas join at once; leaving ones finish their
    current batches. The job reports both.
    """
    from ..leases.scale_requests import POLL_S, request_replicas

    before = request_replicas(folder, replicas)
    change = f"{replicas} replicas instead of {before.replicas}"
    click.echo(f"requested {change} from the run in {folder}, which checks every {POLL_S:g} s")
