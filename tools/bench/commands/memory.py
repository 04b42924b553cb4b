"""`cutset bench memory`: the peak memory of every process of a training run."""

import click

from ...strict_json import to_json
from .options import json_option


@click.command("memory")
@click.argument("task", required=False)
@click.option("--machines", type=click.IntRange(min=1), default=4, show_default=True, help="Workers, and shards.")
@click.option("--optimizer", default="adagrad", show_default=True, help="The shards' optimizer: adagrad or sgd.")
@click.option(
    "--objective", default="memory", show_default=True, help="What the plan minimises: peak memory or step time."
)
@json_option
def memory_command(task: str | None, machines: int, optimizer: str, objective: str, as_json: bool) -> None:
    """Measure the peak memory of every process while TASK trains.

    TASK is by default a transformer of 404 M parameters. Compares the peaks with a bound: 0.45 of the weights and
    gradients of the whole model, plus 300 MB. Exit code 4 if a process exceeds it.
    """
    from ..training.memory_peaks import TRANSFORMER, measure, tabulate

    peaks = measure(task or TRANSFORMER, machines=machines, optimizer=optimizer, options=("--objective", objective))
    if as_json:
        click.echo(to_json(peaks.to_dict()))
    else:
        tabulate(peaks).print()
    if not peaks.held:
        raise SystemExit(4)
