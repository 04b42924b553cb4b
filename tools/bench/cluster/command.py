"""`cutset bench cluster`: name spaces as machines, with limited links, and the real launcher across them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ....errors import UsageError

if TYPE_CHECKING:
    from .lockstep_vs_pipelined import Asked
    from .emulated_cluster import EmulatedCluster

DEFAULT_TASK = "cutset.tools.bench.cluster.recurrent_net:recurrent"


@click.command("cluster")
@click.option("--machines", type=click.IntRange(2, 64), default=4, show_default=True, help="Name spaces to make.")
@click.option("--rate", default="1gbit", show_default=True, help="Of each machine's link, each way: 1gbit, 100mbit.")
@click.option("--batch", type=click.IntRange(min=1), help="Samples of a step; by default the task's own.")
@click.option("--micro-batches", "counts", default="2,4", show_default=True, help="Numbers to choose from.")
@click.option(
    "--emulate-flops",
    "flops",
    default="auto",
    show_default=True,
    metavar="SPEED|off|auto",
    help="Machines that compute so fast, as '16 GFLOP/s', by sleeping; auto: where cores are fewer than machines.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Turns of each way.")
@click.option("--steps", type=click.IntRange(min=1), default=10, show_default=True, help="Steps of a turn.")
@click.option("--fault", type=click.Choice(["cut", "blackhole"]), help="Train, break a link, and tell what is said.")
@click.option("--plain/--no-plain", default=True, show_default=True, help="One turn without emulated compute, too.")
@click.option("--clean", is_flag=True, help="Only remove the name spaces that killed runs have left.")
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write a page (HTML).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, for programs.")
@click.argument("task", default=DEFAULT_TASK)
def cluster_command(
    machines: int,
    rate: str,
    batch: int | None,
    counts: str,
    flops: str,
    rounds: int,
    steps: int,
    fault: str | None,
    plain: bool,
    clean: bool,
    out: Path | None,
    as_json: bool,
    task: str,
) -> None:
    """Train TASK on a cluster that is emulated on this host, and compare steps with what was predicted.

    Machines are network name spaces at one switch, with links of --rate; needs root and Linux's ip and tc. Plans for
    one machine, in lock-step, and with the number of micro-batches that is predicted to be best, run there by the real
    launcher. Where there are fewer cores than machines, what the machines compute takes as long as --emulate-flops
    says, and the real compute is a part of that.
    """
    from ...task.load_task import TaskSpec
    from . import emulated_cluster as emulated

    emulated.demand_possible()
    if clean:
        for name in emulated.clean():
            click.echo(f"removed {name}")
        return
    if out is not None and not out.parent.is_dir():  # said before anything is measured
        raise UsageError("E222", f"cannot write {out}: there is no folder {out.parent}", fix="-o cluster.html")
    from .lockstep_vs_pipelined import Asked

    bytes_per_s = read_rate(rate)
    asked = Asked(
        TaskSpec(task, batch=batch),
        machines,
        bytes_per_s,
        read_flops(flops),
        read_counts(counts),
        rounds,
        steps,
        plain=plain,
    )
    with emulated.EmulatedCluster(machines, rate=bytes_per_s) as cluster:
        if fault is not None:
            _break(asked, cluster, fault, as_json=as_json)
        else:
            _compare(asked, cluster, out, as_json=as_json)


def _compare(asked: "Asked", cluster: "EmulatedCluster", out: Path | None, *, as_json: bool) -> None:
    from .lockstep_vs_pipelined import run
    from .link import measure_link
    from .cluster_page import cluster_page
    from .report import as_data, print_found

    found = run(asked, cluster, measure_link(cluster.venue), _tell)
    if out is not None:
        out.write_text(cluster_page(found), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(as_data(found), indent=1))
    else:
        print_found(found)
    if out is not None:
        click.echo(f"written to {out}", err=as_json)


def _break(asked: "Asked", cluster: "EmulatedCluster", fault: str, *, as_json: bool) -> None:
    from .broken_link import as_data, breaking, print_outcome

    outcome = breaking(asked, cluster, fault, _tell)
    if as_json:
        click.echo(json.dumps(as_data(outcome), indent=1))
    else:
        print_outcome(outcome)


def _tell(said: str) -> None:
    click.echo(said, err=True)


def read_rate(text: str) -> float:
    """Bytes/s; UsageError where it is no rate."""
    from .emulated_cluster import read_rate as read

    try:
        return read(text)
    except ValueError as error:
        raise UsageError("E247", f"--rate {text} {error}", fix="--rate 1gbit") from error


def read_flops(text: str) -> float | None:
    """FLOP/s of an emulated machine, None for "off", 0 for "auto"; UsageError where it is nothing of these."""
    from ....partition.cluster.quantities import SPEED

    if text in ("auto", "off"):
        return 0.0 if text == "auto" else None
    try:
        return SPEED.read(text)
    except ValueError as error:
        raise UsageError("E248", f"--emulate-flops {text} {error}", fix="--emulate-flops '16 GFLOP/s'") from error


def read_counts(text: str) -> tuple[int, ...]:
    """Numbers of micro-batches, each once, least first; UsageError where it is no such list."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) >= 2 for part in parts):
        raise UsageError("E249", f"--micro-batches {text} is no list of numbers from 2", fix="--micro-batches 4,8")
    return tuple(sorted({int(part) for part in parts}))
