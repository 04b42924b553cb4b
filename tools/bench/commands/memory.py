"""`cutset bench memory`: the peak memory of every process of a training run."""

import click

from ...strict_json import to_json
from .options import json_option


@click.command("memory")
@click.argument("task", required=False)
@click.argument("train_options", nargs=-1, type=click.UNPROCESSED)
@click.option("--machines", type=click.IntRange(min=1), default=4, show_default=True, help="Workers, and shards.")
@click.option("--optimizer", default="adagrad", show_default=True, help="The shards' optimizer: adagrad or sgd.")
@click.option(
    "--objective", default="memory", show_default=True, help="What the plan minimises: peak memory or step time."
)
@click.option("--limit", metavar="SIZE", help="The most memory that a process may take, such as 3GB.")
@json_option
def memory_command(
    task: str | None,
    train_options: tuple[str, ...],
    machines: int,
    optimizer: str,
    objective: str,
    limit: str | None,
    as_json: bool,
) -> None:
    """Measure the peak memory of every process while TASK trains.

    TASK is by default a transformer of 404 M parameters. TRAIN_OPTIONS, after --, are more options of `cutset train`.
    Compares the peaks with a bound: 1.8 times an equal part of the model's weights and gradients, plus 300 MB. Exit
    code 4 if a process exceeds it.
    """
    from ..training.memory_peaks import TRANSFORMER, measure, tabulate

    options = ("--objective", objective, *train_options)
    stated = None if limit is None else _parse_size(limit)
    peaks = measure(task or TRANSFORMER, machines=machines, optimizer=optimizer, options=options, limit=stated)
    if as_json:
        click.echo(to_json(peaks.to_dict()))
    else:
        tabulate(peaks).print()
    if not peaks.held:
        raise SystemExit(4)


def _parse_size(text: str) -> int:
    from ....partition.cluster.quantities import Memory

    try:
        return int(Memory.parse(text))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} {error}", param_hint="--limit") from error
