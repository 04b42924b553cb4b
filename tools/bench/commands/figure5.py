"""`cutset bench figure5`: DistBelief's figure 5 as a table, as data and as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .figure3 import read_counts
from .options import assumed_options, figure_folder_option, jobs_option, json_option, print_progress

if TYPE_CHECKING:
    from ..virtual_time.assumptions import Assumptions


@click.command("figure5")
@click.argument("task", default="cutset.models:mnist")
@click.option("--data", help="The samples, as mnist:DIR.")
@click.option("--replicas", default="2,8,32,100", show_default=True, help="Numbers of Downpour's replicas.")
@click.option("--batch-replicas", default="8,32,128,512,2000", show_default=True, help="Those of Sandblaster.")
@click.option("--cores", type=click.IntRange(min=1), default=4, show_default=True, help="Cores of a machine.")
@click.option("--epochs", type=click.FloatRange(min=0, min_open=True), default=8.0, show_default=True, help="At most.")
@click.option("--iterations", type=click.IntRange(min=1), default=50, show_default=True, help="Of Sandblaster.")
@click.option("--lr", type=float, default=0.1, show_default=True, help="The rate of SGD in one process.")
@click.option("--adaptive-lr", type=float, default=0.02, show_default=True, help="The rate of Adagrad in one process.")
@click.option("--target", type=click.FloatRange(0, 1), default=0.95, show_default=True, help="The test accuracy.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Random seed.")
@assumed_options
@jobs_option
@figure_folder_option
@json_option
def figure5_command(
    task: str,
    data: str | None,
    replicas: str,
    batch_replicas: str,
    cores: int,
    epochs: float,
    iterations: int,
    lr: float,
    adaptive_lr: float,
    target: float,
    seed: int,
    assumed: "Assumptions",
    jobs: int,
    out: Path,
    as_json: bool,
) -> None:
    """Train in virtual time until a test accuracy: the time against machines and cores (the paper's figure 5).

    Parameters, gradients, methods, clients and shards are real; how long steps, messages and shards take is simulated.
    A replica is as many machines as the planner finds worth it. Writes figure5.svg, figure5.md and figure5.json to the
    folder of -o, which may be that of figure4, with a file for each run: a figure that was stopped goes on.
    """
    from ...task.load_task import TaskSpec
    from ..virtual_time.figure5 import Figure5Request, simulate_figure5, tabulate
    from ..virtual_time.figure5_svg import render_figure5
    from ..virtual_time.figure_folder import check_folder, write_figure

    folder = check_folder(out, "figure5")
    request = Figure5Request(
        TaskSpec(task, data),
        assumed,
        replicas=read_counts(replicas),
        batch_replicas=read_counts(batch_replicas),
        cores=cores,
        lr=lr,
        adaptive_lr=adaptive_lr,
        epochs=epochs,
        iterations=iterations,
        target=target,
        seed=seed,
    )
    figure = simulate_figure5(request, folder / "runs", jobs=jobs, tell=print_progress)
    write_figure(folder, "figure5", render_figure5(figure), [tabulate(figure)], as_json=as_json)
