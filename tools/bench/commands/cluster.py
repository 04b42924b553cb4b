"""`cutset bench cluster`, with name spaces as machines, and `cutset bench step`, with processes of this machine."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ....errors import UsageError
from ...output_file import PAGE, check_output, write_output
from ...path_option import PathOption
from ...strict_json import to_json
from .options import json_option, print_progress, rounds_option

if TYPE_CHECKING:
    from ..cluster.emulated_cluster import EmulatedCluster
    from ..cluster.lockstep_vs_pipelined import ClusterExperiment

DEFAULT_TASK = "cutset.tools.bench.cluster.recurrent_net:recurrent"


@click.command("cluster")
@click.option(
    "--machines", type=click.IntRange(2, 64), default=4, show_default=True, help="Machines (network name spaces)."
)
@click.option("--rate", default="1gbit", show_default=True, help="Rate of each machine's link, each way.")
@click.option("--batch", type=click.IntRange(min=1), help="Samples of a step. [default: the task's own]")
@click.option("--micro-batches", "counts", default="2,4", show_default=True, help="Numbers of micro-batches to try.")
@click.option(
    "--emulate-flops",
    "flops",
    default="auto",
    show_default=True,
    metavar="SPEED|off|auto",
    help="Emulate machines of this speed, as '16 GFLOP/s', by sleeping; auto: if there are fewer cores than machines.",
)
@rounds_option(5)
@click.option("--steps", type=click.IntRange(min=1), default=10, show_default=True, help="Steps in each round.")
@click.option("--fault", type=click.Choice(["cut", "blackhole"]), help="Break a link in training; print the error.")
@click.option("--plain/--no-plain", default=True, show_default=True, help="Add one round without emulated compute.")
@click.option("--clean", is_flag=True, help="Only remove the name spaces that killed runs have left.")
@click.option("-o", "--out", type=PathOption(may_be_folder=False), help="Write a page (HTML).")
@json_option
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
    """Train TASK on a cluster that is emulated on this host, and compare measured with predicted steps.

    The machines are network name spaces at one switch, with links of --rate; this needs root and Linux's ip and tc.
    Runs plans for one machine, for lock-step, and for the best number of micro-batches with the real launcher. If there
    are fewer cores than machines, compute takes as long as --emulate-flops says; the real compute is a part of that.
    """
    from ...task.load_task import TaskSpec
    from ..cluster import emulated_cluster
    from ..cluster.lockstep_vs_pipelined import ClusterExperiment

    emulated_cluster.require_support()
    if clean:
        for name in emulated_cluster.remove_leftovers():
            click.echo(f"removed {name}")
        return
    if out is not None:
        check_output(out, PAGE)
    bytes_per_s, spec = read_rate(rate), TaskSpec(task, batch=batch)
    experiment = ClusterExperiment(
        spec, machines, bytes_per_s, read_flops(flops), read_counts(counts), rounds, steps, plain=plain
    )
    with emulated_cluster.EmulatedCluster(machines, rate=bytes_per_s) as cluster:
        if fault is not None:
            _break_link(experiment, cluster, fault, as_json=as_json)
        else:
            _compare(experiment, cluster, out, as_json=as_json)


def _compare(experiment: "ClusterExperiment", cluster: "EmulatedCluster", out: Path | None, *, as_json: bool) -> None:
    from ..bench_table import show_tables
    from ..cluster.link import measure_link
    from ..cluster.lockstep_vs_pipelined import run_experiment
    from ..cluster.report import render_cluster_page, tabulate

    result = run_experiment(experiment, cluster, measure_link(cluster.process_placement), print_progress)
    if out is not None:
        write_output(out, render_cluster_page(result), PAGE)
    show_tables(tabulate(result), as_json=as_json)
    if out is not None:
        click.echo(f"written to {out}", err=as_json)


def _break_link(experiment: "ClusterExperiment", cluster: "EmulatedCluster", fault: str, *, as_json: bool) -> None:
    from ..cluster.broken_link import measure_fault

    report = measure_fault(experiment, cluster, fault, print_progress)
    click.echo(to_json(asdict(report), indent=1) if as_json else report.describe())


def read_rate(text: str) -> float:
    """Return bytes/s. Raises UsageError (E247) for anything but a rate."""
    from ..cluster.emulated_cluster import parse_rate

    try:
        return parse_rate(text)
    except ValueError as error:
        raise UsageError("E247", f"--rate {text} {error}", fix="--rate 1gbit") from error


def read_flops(text: str) -> float | None:
    """Return FLOP/s of a machine, None for "off", 0 for "auto". Raises UsageError (E248) for anything else."""
    from ....partition.cluster.quantities import Speed

    if text in ("auto", "off"):
        return 0.0 if text == "auto" else None
    try:
        return Speed.parse(text)
    except ValueError as error:
        raise UsageError("E248", f"--emulate-flops {text} {error}", fix="--emulate-flops '16 GFLOP/s'") from error


def read_counts(text: str) -> tuple[int, ...]:
    """Return numbers of micro-batches, each once, in rising order. Raises UsageError (E249) for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 and int(part) >= 2 for part in parts):
        facts = f"--micro-batches {text} is not a list of numbers from 2"
        raise UsageError("E249", facts, fix="--micro-batches 4,8")
    return tuple(sorted({int(part) for part in parts}))


@click.command("step")
@click.argument("task", default="cutset.models:digits_local")
@click.option(
    "--machines", type=click.IntRange(min=2), default=2, show_default=True, help="Processes that the cut is for."
)
@rounds_option(5)
@click.option("--steps", type=click.IntRange(min=1), default=300, show_default=True, help="Steps in each round.")
@json_option
def step_command(task: str, machines: int, rounds: int, steps: int, as_json: bool) -> None:
    """Measure a step of TASK by plain torch, by our program of the whole model, and cut over processes.

    All run on this machine, in processes of as many threads as each worker of the cut has. Shows what our program takes
    for each operator beyond torch's own work.
    """
    from ...task.load_task import TaskSpec
    from ..bench_table import show_tables
    from ..cluster.step_time import measure, tabulate

    rows = measure(TaskSpec(task), machines=machines, rounds=rounds, steps=steps, on_progress=print_progress)
    show_tables(tabulate(rows, task=task), as_json=as_json)
