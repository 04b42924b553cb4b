"""`cutset bench step`: what a step costs beyond torch's own work."""

import click

from .options import json_option, print_progress, rounds_option


@click.command("step")
@click.argument("task", default="cutset.models:digits_local")
@click.option(
    "--machines", type=click.IntRange(min=2), default=2, show_default=True, help="Processes that the cut is for."
)
@rounds_option(5)
@click.option("--steps", type=click.IntRange(min=1), default=300, show_default=True, help="Steps in each round.")
@json_option
def step_command(task: str, machines: int, rounds: int, steps: int, as_json: bool) -> None:
    """Measure a step of TASK by plain torch, by our program of the whole model, and cut over processes.

    All run on this machine, in processes of as many threads as each worker of the cut has. Shows what our program takes
    for each operator beyond torch's own work.
    """
    from ...task.load_task import TaskSpec
    from ..bench_table import show_tables
    from ..cluster.step_time import measure, tabulate

    rows = measure(TaskSpec(task), machines=machines, rounds=rounds, steps=steps, on_progress=print_progress)
    show_tables(tabulate(rows, task=task), as_json=as_json)
