"""`cutset bench figure4`: DistBelief's figure 4 as a table, as data and as a picture."""

from pathlib import Path
from typing import Any

import click

from .options import figure_options, print_progress


@click.command("figure4")
@figure_options("cutset.models:mnist", epochs=5.0, target=0.95)
@click.option("--replicas", type=click.IntRange(min=2), default=20, show_default=True, help="Replicas of most curves.")
@click.option("--many", type=click.IntRange(min=2), default=200, show_default=True, help="Replicas of `many`.")
@click.option("--batch-replicas", type=click.IntRange(min=1), default=2000, show_default=True, help="Of Sandblaster.")
@click.option("--iterations", type=click.IntRange(min=1), default=50, show_default=True, help="Of Sandblaster.")
@click.option("--curve", "curves", multiple=True, help="One of the curves; repeatable. [default: all]")
def figure4_command(
    common: dict[str, Any],
    replicas: int,
    many: int,
    batch_replicas: int,
    iterations: int,
    curves: tuple[str, ...],
    jobs: int,
    out: Path,
    as_json: bool,
) -> None:
    """Train by every method in virtual time: accuracy against time (the paper's figure 4).

    Parameters, gradients, methods, clients and shards are real; how long steps, messages and shards take is simulated.
    Writes figure4.svg, figure4.md and figure4.json to the folder of -o, with a file for each run: where it was stopped,
    the same command goes on.
    """
    from ..virtual_time.figure4 import Figure4Request, simulate_figure4, tabulate
    from ..virtual_time.figure4_svg import render_figure4
    from ..virtual_time.figure_folder import check_folder, write_figure

    folder = check_folder(out, "figure4")
    request = Figure4Request(
        **common, some=replicas, many=many, batch=batch_replicas, iterations=iterations, names=curves
    )
    figure = simulate_figure4(request, folder / "runs", jobs=jobs, tell=print_progress)
    write_figure(folder, "figure4", render_figure4(figure), [tabulate(figure)], as_json=as_json)
