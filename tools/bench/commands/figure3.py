"""`cutset bench figure3`: DistBelief's figure 3 as a table, as JSON and as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ....errors import UsageError
from ...output_file import PICTURE, check_output, write_output
from ...path_option import PathOption
from .options import json_option, print_progress

if TYPE_CHECKING:
    from ..planner.figure3 import SpeedupPoint


@click.command("figure3")
@click.option("--net", "nets", multiple=True, help="A bundled net; repeatable. [default: the paper's four]")
@click.option("--machines", "counts", help="Numbers of machines, as 1,8,81.")
@click.option("--batch", type=click.IntRange(min=1), help="Samples of a step. [default: 100]")
@click.option("--flops", type=float, default=60e9, show_default=True, help="FLOP/s of a machine.")
@click.option("--bandwidth", type=float, default=110e6, show_default=True, help="Bytes/s of a network card, each way.")
@click.option("--latency", type=float, default=2e-4, show_default=True, help="Seconds that a message travels.")
@click.option(
    "--message", type=float, default=7e-4, show_default=True, help="Seconds that a message costs at either end."
)
@click.option(
    "--straggling", type=float, default=0.5, show_default=True, help="Spread of the logarithm of a machine's slowdown."
)
@click.option("--draws", type=int, default=8, show_default=True, help="Steps to average over; more with few machines.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Random seed.")
@click.option(
    "--candidates",
    default="mesh",
    show_default=True,
    metavar="KIND",
    help="Consider plans of this kind only, as slices or tiles; '' considers all, which takes much longer.",
)
@click.option("--svg", type=PathOption(may_be_folder=False), help="Write the picture.")
@json_option
def figure3_command(
    nets: tuple[str, ...],
    counts: str | None,
    batch: int | None,
    flops: float,
    bandwidth: float,
    latency: float,
    message: float,
    straggling: float,
    draws: int,
    seed: int,
    candidates: str,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Simulate speed-up against machines for DistBelief's nets (the paper's figure 3).

    Plans each net for each number of machines and simulates the plan, without micro-batches, on machines like those
    that the options describe. Compare the shapes of the curves: the paper says little about its machines.
    """
    from ..bench_table import show_tables
    from ..planner.figure3 import COUNTS, NETS, AssumedMachines, simulate_figure3, tabulate
    from ..planner.figure3_svg import render_figure3

    if svg is not None:
        check_output(svg, PICTURE)
    assumed = AssumedMachines(
        flops_per_s=flops,
        bandwidth=bandwidth,
        latency_s=latency,
        message_s=message,
        straggling=straggling,
        draws=draws,
        seed=seed,
    )
    figure = simulate_figure3(
        assumed, nets=nets or NETS, counts=read_counts(counts) or COUNTS, batch=batch, candidates=candidates, tell=_tell
    )
    if svg is not None:
        write_output(svg, render_figure3(figure), PICTURE)
    show_tables(*tabulate(figure), as_json=as_json)
    if svg is not None:
        click.echo(f"written to {svg}", err=as_json)


def read_counts(text: str | None) -> tuple[int, ...]:
    """Return numbers of machines, each once, in rising order. Raises UsageError (E241) for anything else."""
    from ....partition.cluster.machines import MAX_MACHINES

    parts = text.split(",") if text is not None else []
    if not all(part.strip().isdecimal() and len(part) < 10 and 1 <= int(part) <= MAX_MACHINES for part in parts):
        facts = f"--machines {text} is not a list of numbers from 1 to {MAX_MACHINES}"
        raise UsageError("E241", facts, fix="--machines 1,8,81")
    return tuple(sorted({int(part) for part in parts}))


def _tell(point: "SpeedupPoint") -> None:
    print_progress(f"{point.task}, machines {point.machines}: {point.speedup:.2f} times as fast as one")
