"""`cutset bench figure5`: DistBelief's figure 5 as a table, as data and as a picture."""

from pathlib import Path
from typing import Any

import click

from .figure3 import read_counts
from .options import figure_options, print_progress


@click.command("figure5")
@figure_options("cutset.models:mnist", epochs=8.0, target=0.95)
@click.option("--replicas", default="2,8,32,100", show_default=True, help="Numbers of Downpour's replicas.")
@click.option("--batch-replicas", default="8,32,128,512,2000", show_default=True, help="Those of Sandblaster.")
@click.option("--cores", type=click.IntRange(min=1), default=4, show_default=True, help="Cores of a machine.")
@click.option("--iterations", type=click.IntRange(min=1), default=50, show_default=True, help="Of Sandblaster.")
def figure5_command(
    common: dict[str, Any],
    replicas: str,
    batch_replicas: str,
    cores: int,
    iterations: int,
    jobs: int,
    out: Path,
    as_json: bool,
) -> None:
    """Train in virtual time until a test accuracy: the time against machines and cores (the paper's figure 5).

    Parameters, gradients, methods, clients and shards are real; how long steps, messages and shards take is simulated.
    A replica is as many machines as the planner finds worth it. Writes figure5.svg, figure5.md and figure5.json to the
    folder of -o, which may be that of figure4, with a file for each run: a figure that was stopped goes on.
    """
    from ..virtual_time.figure5 import Figure5Request, simulate_figure5, tabulate
    from ..virtual_time.figure5_svg import render_figure5
    from ..virtual_time.figure_folder import check_folder, write_figure

    folder = check_folder(out, "figure5")
    request = Figure5Request(
        **common,
        replicas=read_counts(replicas),
        batch_replicas=read_counts(batch_replicas),
        cores=cores,
        iterations=iterations,
    )
    figure = simulate_figure5(request, folder / "runs", jobs=jobs, tell=print_progress)
    write_figure(folder, "figure5", render_figure5(figure), [tabulate(figure)], as_json=as_json)
