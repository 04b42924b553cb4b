"""`cutset bench simulate`, `against-real`, `method-map`: runs in virtual time, and how near they are to real ones."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import assumed_options, figure_options, json_option, print_progress

if TYPE_CHECKING:
    from ...virtual_time.results import Point
    from ..virtual_time.assumptions import Assumptions


@click.command("simulate")
@click.argument("task", default="cutset.models:mnist")
@click.option("--data", help="The samples, as mnist:DIR.")
@click.option("--method", default="downpour", show_default=True, help="The method, as `cutset train` takes it.")
@click.option("--optimizer", default="sgd", show_default=True, help="The optimizer.")
@click.option("--lr", type=float, default=0.1, show_default=True, help="Its rate.")
@click.option("--batch", type=click.IntRange(min=1), help="Samples of a step. [default: the task's]")
@click.option("--replicas", type=click.IntRange(min=1), default=4, show_default=True, help="Replicas.")
@click.option("--epochs", type=click.FloatRange(min=0, min_open=True), default=5.0, show_default=True, help="At most.")
@click.option("--target", type=click.FloatRange(0, 1), help="The test accuracy at which it ends.")
@click.option("--points", type=click.IntRange(min=1), default=20, show_default=True, help="Tests on the way.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Random seed.")
@assumed_options
@json_option
def simulate_command(
    task: str,
    data: str | None,
    method: str,
    optimizer: str,
    lr: float,
    batch: int | None,
    replicas: int,
    epochs: float,
    target: float | None,
    points: int,
    seed: int,
    assumed: "Assumptions",
    as_json: bool,
) -> None:
    """Train by one method in virtual time, with up to thousands of replicas.

    Parameters, gradients, method, clients and shards are real; how long steps, messages and shards take is simulated.
    """
    from ...task.load_task import TaskSpec, load_task
    from ...virtual_time.results import SimulationSpec
    from ...virtual_time.samples import read_samples_of
    from ..bench_table import show_tables
    from ..virtual_time.curve_runs import CurveSetup, run_one
    from ..virtual_time.one_run import tabulate

    spec, loaded = TaskSpec(task, data), load_task(TaskSpec(task, data))
    size = batch or loaded.batch
    samples = max(size, int(epochs * len(read_samples_of(loaded).train)))
    machines = assumed.for_replicas(replicas)
    simulation = SimulationSpec(
        method, optimizer, lr, size, samples, replicas, seed=seed, machines=machines, target=target, points=points
    )
    simulation.check()
    parameters = assumed.check_task_memory(simulation, loaded)
    began = time.monotonic()

    def tell(point: "Point") -> None:
        accuracy = "" if point.test_accuracy is None else f"test accuracy {point.test_accuracy:.2%}, "
        print_progress(
            f"{point.samples:,} samples: {accuracy}{point.seconds:.0f} simulated s; {time.monotonic() - began:.0f} s"
        )

    result = run_one(CurveSetup(spec, simulation), tell)
    facts = assumed.describe(parameters=parameters, batch=size)
    show_tables(tabulate(simulation, result, facts), as_json=as_json)


@click.command("against-real")
@click.argument("task", default="cutset.models:mnist")
@click.option("--data", help="The samples, as mnist:DIR.")
@click.option(
    "--step",
    type=click.FloatRange(min=0, min_open=True),
    default=0.1,
    show_default=True,
    help="Seconds of a step, more than a replica computes.",
)
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each, by other seeds.")
@json_option
def against_real_command(task: str, data: str | None, step: float, seeds: int, as_json: bool) -> None:
    """Compare runs in virtual time with the same runs by two to four replicas that are processes.

    Compares the staleness of pushes, and the time to a test accuracy of 90 %, of four methods in three settings. Steps
    of the processes take as long as those of the simulation: they compute, and sleep for the rest. Each runs by some
    seeds, and means are compared. Takes half an hour, and a quiet machine.
    """
    from ...task.load_task import TaskSpec
    from ..bench_table import show_tables
    from ..virtual_time.against_real import compare_all, tabulate

    results = compare_all(TaskSpec(task, data), step_s=step, seeds=seeds, tell=print_progress)
    show_tables(tabulate(results), as_json=as_json)


@click.command("method-map")
@figure_options("cutset.models:digits", epochs=12.0, target=0.9)
@click.option("--replicas", type=click.IntRange(min=2), default=8, show_default=True, help="Replicas.")
def method_map_command(common: dict[str, Any], replicas: int, jobs: int, out: Path, as_json: bool) -> None:
    """Simulate which method is the fastest on which network: 1 Gb/s to 10 Mb/s, with and without slow machines.

    Writes method-map.svg, method-map.md and method-map.json to the folder of -o, with a file for each run.
    """
    from ..virtual_time.figure_folder import check_folder, write_figure
    from ..virtual_time.method_map import MapRequest, simulate_map, tabulate
    from ..virtual_time.method_map_svg import render_method_map

    folder = check_folder(out, "method-map")
    request = MapRequest(**common, replicas=replicas)
    found = simulate_map(request, folder / "runs", jobs=jobs, tell=print_progress)
    write_figure(folder, "method-map", render_method_map(found), [tabulate(found)], as_json=as_json)
