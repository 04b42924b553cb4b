"""`cutset bench figure3`: DistBelief's figure 3 as a table, as JSON and as a picture. speedup.py has the numbers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ....errors import UsageError

if TYPE_CHECKING:
    from .figure3 import Figure, Point


@click.command("figure3")
@click.option("--net", "nets", multiple=True, help="A bundled net, again for another; by default the paper's four.")
@click.option("--machines", "counts", help="Numbers of machines, as 1,8,81.")
@click.option("--batch", type=click.IntRange(min=1), help="Samples of a step; by default 100.")
@click.option("--flops", type=float, default=60e9, show_default=True, help="FLOP/s of a machine.")
@click.option("--bandwidth", type=float, default=110e6, show_default=True, help="Bytes/s of a card, each way.")
@click.option("--latency", type=float, default=2e-4, show_default=True, help="Seconds that a message travels.")
@click.option("--message", type=float, default=7e-4, show_default=True, help="Seconds that it costs at either end.")
@click.option(
    "--straggling", type=float, default=0.5, show_default=True, help="Spread of the logarithm of a machine's slowdown."
)
@click.option(
    "--draws",
    type=int,
    default=8,
    show_default=True,
    help="Steps that the mean is of, more on few machines.",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Of plans and slowdowns.")
@click.option(
    "--only",
    default="mesh",
    show_default=True,
    metavar="KIND",
    help="Choose among plans of this kind, as slices or tiles; all with an empty one, which takes much longer.",
)
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write the picture.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, for programs.")
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
    only: str,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Speed-up against machines for DistBelief's speech net and image nets (the paper's figure 3).

    Each net is planned for each number of machines and the plan simulated on the machines that the options describe,
    without micro-batches. Compare the shapes: the paper says little of its machines.
    """
    from .figure3_picture import figure3_svg
    from .figure3 import COUNTS, NETS, Assumed, figure3

    assumed = Assumed(
        flops_per_s=flops,
        bandwidth=bandwidth,
        latency_s=latency,
        message_s=message,
        straggling=straggling,
        draws=draws,
        seed=seed,
    )
    machines = _counts(counts) or COUNTS
    found = figure3(assumed, nets=nets or NETS, counts=machines, batch=batch, only=only, tell=_tell)
    if svg is not None:
        _write(svg, figure3_svg(found))
    if as_json:
        click.echo(json.dumps(found.as_data(), indent=1))
    else:
        print_figure(found)
    if svg is not None:
        click.echo(f"written to {svg}", err=as_json)


def _counts(text: str | None) -> tuple[int, ...]:
    """Numbers of machines, each once, least first."""
    from ....partition.cluster.machines import MACHINES_MAX

    parts = text.split(",") if text is not None else []
    if not all(part.strip().isdigit() and 1 <= int(part) <= MACHINES_MAX for part in parts):
        raise UsageError("E241", f"--machines {text} is no list of numbers from 1 to {MACHINES_MAX}", fix="1,8,81")
    return tuple(sorted({int(part) for part in parts}))


def _tell(point: "Point") -> None:
    click.echo(f"{point.task}, machines {point.machines}: {point.speedup:.2f} times as fast as one", err=True)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError("E222", f"cannot write {path}: {error.strerror}", fix="name a folder that exists") from error


def print_figure(found: "Figure") -> None:
    """The machines, the speed-ups beside what the paper's text says, and every plan."""
    from rich.text import Text

    from ...report.console import make_console, print_columns
    from ...units import bytes_text, seconds_text
    from .figure3 import STATED

    console = make_console()
    for line in found.assumptions:
        console.print(Text(line))
    nets = list(dict.fromkeys(point.task for point in found.points))
    counts = sorted({point.machines for point in found.points})
    speedups = {(point.task, point.machines): f"{point.speedup:.2f}" for point in found.points}
    for stated in STATED:
        at = (stated.task, stated.machines)
        if at in speedups:
            speedups[at] += f" (paper {'>' if stated.at_least else ''}{stated.speedup:g})"
    console.print(Text("\nSpeed-up over one machine", style="bold"))
    print_columns(console, ("machines", *nets), [[str(k), *(speedups[net, k] for net in nets)] for k in counts])
    console.print(Text("The plans", style="bold"))
    rows = [
        (p.task, p.plan, str(p.machines), seconds_text(p.step_s), seconds_text(p.quiet_s), bytes_text(p.bytes_forward))
        for p in found.points
    ]
    print_columns(console, ("net", "plan", "machines", "step", "none slow", "bytes forward"), rows, left=2)
    for net in nets:
        console.print(Text(summary(found.of(net))))
    console.print(Text(f"planned and simulated in {seconds_text(found.seconds)}", style="dim"))


def summary(points: "Sequence[Point]") -> str:
    """Where a net is fastest, in words."""
    best = max(points, key=lambda point: point.speedup)
    last = points[-1]
    beyond = "" if best is last else f", {last.speedup:.2f} times on {last.machines}"
    return f"{best.task}: fastest on {best.machines} machines, {best.speedup:.2f} times as fast as on one{beyond}."
