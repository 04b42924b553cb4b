"""`cutset bench memory` and `cutset bench start`: what the processes of a run take, and how soon they train."""

import click

from ...strict_json import to_json
from .options import json_option, print_progress, rounds_option


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


@click.command("start")
@click.argument("task", required=False)
@rounds_option(5)
@json_option
def start_command(task: str | None, rounds: int, as_json: bool) -> None:
    """Measure the time from a command to the first training step of TASK.

    Says when the run was planned, when its first processes knew each other and when one of them had made a step, by
    default and with two replicas or machines; and how long `--help` and `plan` take. Prints medians; every command runs
    once in each round. TASK is by default that of the digits.
    """
    from ..bench_table import show_tables
    from ..training.start_times import TASK, measure, tabulate

    show_tables(tabulate(measure(print_progress, task=task or TASK, rounds=rounds)), as_json=as_json)


def _parse_size(text: str) -> int:
    from ....partition.cluster.quantities import Memory

    try:
        return int(Memory.parse(text))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} {error}", param_hint="--limit") from error
