"""`cutset bench figure4`: DistBelief's figure 4 as a table, as data and as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import assumed_options, figure_folder_option, jobs_option, json_option, print_progress

if TYPE_CHECKING:
    from ..virtual_time.assumptions import Assumptions


@click.command("figure4")
@click.argument("task", default="cutset.models:mnist")
@click.option("--data", help="The samples, as mnist:DIR.")
@click.option("--epochs", type=click.FloatRange(min=0, min_open=True), default=5.0, show_default=True, help="Epochs.")
@click.option("--replicas", type=click.IntRange(min=2), default=20, show_default=True, help="Replicas of most curves.")
@click.option("--many", type=click.IntRange(min=2), default=200, show_default=True, help="Replicas of `many`.")
@click.option("--batch-replicas", type=click.IntRange(min=1), default=2000, show_default=True, help="Of Sandblaster.")
@click.option("--iterations", type=click.IntRange(min=1), default=50, show_default=True, help="Of Sandblaster.")
@click.option("--lr", type=float, default=0.1, show_default=True, help="The rate of SGD in one process.")
@click.option("--adaptive-lr", type=float, default=0.02, show_default=True, help="The rate of Adagrad in one process.")
@click.option("--target", type=click.FloatRange(0, 1), default=0.95, show_default=True, help="A test accuracy.")
@click.option("--curve", "curves", multiple=True, help="One of the curves; repeatable. [default: all]")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Random seed.")
@assumed_options
@jobs_option
@figure_folder_option
@json_option
def figure4_command(
    task: str,
    data: str | None,
    epochs: float,
    replicas: int,
    many: int,
    batch_replicas: int,
    iterations: int,
    lr: float,
    adaptive_lr: float,
    target: float,
    curves: tuple[str, ...],
    seed: int,
    assumed: "Assumptions",
    jobs: int,
    out: Path,
    as_json: bool,
) -> None:
    """Train by every method in virtual time: accuracy against time (the paper's figure 4).

    Parameters, gradients, methods, clients and shards are real; how long steps, messages and shards take is simulated.
    Writes figure4.svg, figure4.md and figure4.json to the folder of -o, with a file for each run: where it was stopped,
    the same command goes on.
    """
    from ...task.load_task import TaskSpec
    from ..virtual_time.figure4 import Figure4Request, simulate_figure4, tabulate
    from ..virtual_time.figure4_svg import render_figure4
    from ..virtual_time.figure_folder import check_folder, write_figure

    folder = check_folder(out, "figure4")
    request = Figure4Request(
        TaskSpec(task, data),
        assumed,
        epochs=epochs,
        some=replicas,
        many=many,
        batch=batch_replicas,
        iterations=iterations,
        lr=lr,
        adaptive_lr=adaptive_lr,
        target=target,
        seed=seed,
        names=curves,
    )
    figure = simulate_figure4(request, folder / "runs", jobs=jobs, tell=print_progress)
    write_figure(folder, "figure4", render_figure4(figure), [tabulate(figure)], as_json=as_json)
