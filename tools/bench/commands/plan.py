"""`cutset bench plan`: our plans and others', predicted and measured steps, and graphs that others published."""

from pathlib import Path

import click

from ...path_option import PathOption
from .options import json_option, print_progress


@click.command("plan")
@click.option(
    "--graphs",
    multiple=True,
    type=PathOption(),
    metavar="DIR|FILE...",
    help="Published graphs: dnn-partitioning JSON, PipeDream profiles (*graph.txt), METIS *.graph, hMETIS *.hgr.",
)
@click.option("--measure", is_flag=True, help="Run twenty plans on this machine, and compare with predictions.")
@click.option("--scale", is_flag=True, help="Measure how long plans of large nets for many machines take.")
@click.option("--unlike", is_flag=True, help="Compare with plans by hand for fast and slow machines of little memory.")
@click.option(
    "--svg", type=PathOption(may_be_folder=False), help="With --scale: write the picture of time against machines."
)
@click.option("--seeds", type=click.IntRange(min=0), default=30, show_default=True, help="Number of random nets.")
@click.option(
    "--machines",
    type=click.IntRange(min=1),
    help="With --graphs: accelerators, machines or parts, instead of the number in the file.",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Random seed.")
@click.option(
    "--limit", type=click.FloatRange(min=0), default=20.0, show_default=True, help="Seconds to search for each row."
)
@json_option
@click.argument("more", nargs=-1, type=PathOption())
def plan_bench_command(
    graphs: tuple[Path, ...],
    measure: bool,
    scale: bool,
    unlike: bool,
    svg: Path | None,
    seeds: int,
    machines: int | None,
    seed: int,
    limit: float,
    as_json: bool,
    more: tuple[Path, ...],
) -> None:
    """Compare our plans with those that others make.

    By default: simulates plans for the bundled tasks, for nets whose good cuts are known, and for random nets. With
    --measure: compares what plans for this machine predict - seconds and bytes of a step, memory, and whether one
    process is as good - with what real processes take, on links as they are and on emulated ones. With --scale: plans
    large nets for many machines, which takes some minutes, and prints what that took. With --unlike: plans eleven nets
    for two fast and two slow machines, whose memory is limited in several ways, and compares with some twenty plans
    that are written by hand; takes some minutes. With --graphs: plans published
    graphs and compares with the results published for them, which are never used to find ours. The objective of a row
    is the largest load of a device for dnn-partitioning, the seconds of the slowest stage or transfer for PipeDream,
    the weight of the edges that are cut for METIS, and for hMETIS the connectivity, km1: the weight of each net times
    the parts that it spans less one.
    """
    if more and not graphs:
        raise click.UsageError(f"{more[0]} needs --graphs: cutset bench plan --graphs {more[0]}")
    if svg is not None and not scale:
        raise click.UsageError(f"--svg needs --scale: cutset bench plan --scale --svg {svg}")
    if scale:
        _measure_planning(svg, as_json=as_json)
    elif unlike:
        _compare_unlike(as_json=as_json)
    elif measure:
        _measure_predictions(as_json=as_json)
    elif graphs:
        _plan_graphs((*graphs, *more), machines, seed, limit, as_json=as_json)
    else:
        _compare_plans(seeds, as_json=as_json)


def _plan_graphs(paths: tuple[Path, ...], machines: int | None, seed: int, limit_s: float, *, as_json: bool) -> None:
    from ..bench_table import show_tables
    from ..device_placement.graphs.graph_files import read_graph_files
    from ..device_placement.run_graphs import plan_graph, tabulate

    files = read_graph_files(paths)  # all of them before anything is planned, so that a broken file is named at once
    rows = [row for file in files for row in plan_graph(file, machines=machines, seed=seed, limit_s=limit_s)]
    show_tables(tabulate(rows), as_json=as_json)


def _compare_plans(seeds: int, *, as_json: bool) -> None:
    from ..bench_table import show_tables
    from ..planner.baselines import compare_plans, tabulate
    from ..planner.models import list_subjects

    rows = []
    for row in compare_plans(list_subjects(seeds=seeds)):
        rows.append(row)
        print_progress(f"{row.net} on {row.machines} machines: {row.plan} ({row.plan_s:.1f} s)")
    show_tables(*tabulate(rows), as_json=as_json)


def _compare_unlike(*, as_json: bool) -> None:
    from ..bench_table import show_tables
    from ..planner.unlike_machines import compare_unlike, list_cases, tabulate

    rows = []
    for row in compare_unlike(list_cases()):
        rows.append(row)
        print_progress(
            f"{row.net}, memory {row.memory}, {row.micro_batches} micro-batches: {row.plan} ({row.plan_s:.1f} s)"
        )
    show_tables(tabulate(rows), as_json=as_json)


def _measure_predictions(*, as_json: bool) -> None:
    from ..bench_table import show_tables
    from ..cluster.prediction import measure_predictions, tabulate

    show_tables(tabulate(measure_predictions(print_progress)), as_json=as_json)


def _measure_planning(svg: Path | None, *, as_json: bool) -> None:
    from ...output_file import PICTURE, check_output, write_output
    from ..bench_table import show_tables
    from ..planner.planning_time import measure_planning, tabulate
    from ..planner.planning_time_svg import render_planning_time

    if svg is not None:
        check_output(svg, PICTURE)
    rows = measure_planning(print_progress)
    if svg is not None:
        write_output(svg, render_planning_time(rows), PICTURE)
    show_tables(tabulate(rows), as_json=as_json)
    if svg is not None:
        click.echo(f"written to {svg}", err=as_json)
