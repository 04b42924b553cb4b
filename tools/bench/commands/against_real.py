"""`cutset bench against-real`: how near runs in virtual time are to runs of processes."""

import click

from .options import json_option, print_progress


@click.command("against-real")
@click.argument("task", default="cutset.models:mnist")
@click.option("--data", help="The samples, as mnist:DIR.")
@click.option(
    "--step",
    type=click.FloatRange(min=0, min_open=True),
    default=0.1,
    show_default=True,
    help="Seconds of a step, more than a replica computes.",
)
@json_option
def against_real_command(task: str, data: str | None, step: float, as_json: bool) -> None:
    """Compare runs in virtual time with the same runs by two to four replicas that are processes.

    Compares the staleness of pushes, and the time to a test accuracy of 90 %, of four methods in three settings. Steps
    of the processes take as long as those of the simulation: they compute, and sleep for the rest. Takes some minutes,
    and a quiet machine.
    """
    from ...task.load_task import TaskSpec
    from ..bench_table import show_tables
    from ..virtual_time.against_real import compare_all, tabulate

    results = compare_all(TaskSpec(task, data), step_s=step, tell=print_progress)
    show_tables(tabulate(results), as_json=as_json)
