"""`cutset bench`: the planner beside what others have published, what a step really takes, and what messages do."""

from pathlib import Path

import click

from .cluster.command import cluster_command
from .planner.figure3_command import figure3_command
from .training.methods_command import methods_bench_command


@click.group()
def bench() -> None:
    """Measure it: plans, predictions, messages, parameter servers, rules and methods, beside other ways."""


bench.add_command(cluster_command)
bench.add_command(figure3_command)
bench.add_command(methods_bench_command)


@bench.command("channel")
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True, help="Turns of each way and size.")
@click.option("--json", "as_json", is_flag=True, help="Print all rounds as JSON, for programs.")
def channel_command(rounds: int, as_json: bool) -> None:
    """Print how fast tensors go between two processes of this machine, by our ways and by others.

    Medians of rounds in which all ways take turns: memcpy in one process, a raw socket, torch's gloo, and our channel
    over TCP, over TCP with encryption as it is used, and over shared memory as it is used on one host.
    """
    import json

    from .transport.channel import as_data, measure, print_rows

    rows = measure(rounds=rounds)
    if as_json:
        click.echo(json.dumps({"rows": [as_data(row) for row in rows]}))
    else:
        print_rows(rows)


@bench.command("memory")
@click.argument("task", required=False)
@click.option("--machines", type=click.IntRange(min=1), default=4, show_default=True, help="Workers, and shards.")
@click.option("--rule", default="adagrad", show_default=True, help="How shards apply a push: adagrad or sgd.")
@click.option(
    "--objective", default="memory", show_default=True, help="Of the plan: memory of the fullest machine, or time."
)
@click.option("--json", "as_json", is_flag=True, help="Print the peaks as JSON, for programs.")
def memory_command(task: str | None, machines: int, rule: str, objective: str, as_json: bool) -> None:
    """Train TASK (a transformer of 404 M parameters) and print the peak memory of every process beside a bound.

    The bound is 0.45 of the weights and gradients of the whole model, and 300 MB. Exit code 4 where it is exceeded.
    """
    import json

    from .training.memory_peaks import TRANSFORMER, as_data, measure, table

    found = measure(task or TRANSFORMER, machines=machines, rule=rule, more=("--objective", objective))
    click.echo(json.dumps(as_data(found)) if as_json else table(found))
    if not found.held:
        raise SystemExit(4)


@bench.command("ps")
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True, help="Turns of everything.")
@click.option("--json", "as_json", is_flag=True, help="Print all rounds and goals as JSON, for programs.")
def ps_command(rounds: int, as_json: bool) -> None:
    """Print how fast 100 MB of parameters go to shards and back, with updates applied, beside other ways.

    Medians of rounds in which all take turns: memcpy, a raw socket one way and both ways, gloo's all_reduce, and
    pushes, pulls and both over plain TCP, encrypted TCP and shared memory, to one shard and to two, by SGD and by
    Adagrad.
    """
    import json

    from .transport.parameter_server import measure
    from .transport.parameter_server_goals import as_data, print_rows

    rows = measure(rounds=rounds)
    if as_json:
        click.echo(json.dumps(as_data(rows)))
    else:
        print_rows(rows)


@bench.command("portions")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of either way, in turn.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON, for programs.")
def portions_command(rounds: int, as_json: bool) -> None:
    """Print how long an iteration of a batch method takes where one of four replicas is 5 times slower.

    With small portions and backups of late ones, and with one portion for each replica, beside the ideal: all work by
    all speeds together. The processes are real; what a portion takes to compute is emulated by waiting. Then the same
    simulated, event by event, for 2000 replicas.
    """
    import json
    from dataclasses import asdict

    from .training.stragglers import measure, print_rows

    rows = measure(rounds=rounds)
    if as_json:
        click.echo(json.dumps([{**asdict(row), "ratio": row.ratio} for row in rows]))
    else:
        print_rows(rows)


@bench.command("plan")
@click.option(
    "--graphs",
    "graphs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR|FILE...",
    help="Graphs of others: dnn-partitioning JSON, PipeDream profiles (*graph.txt), METIS *.graph, hMETIS *.hgr.",
)
@click.option(
    "--measure", is_flag=True, help="Probe this machine, train on two workers, and compare with the prediction."
)
@click.option("--seeds", type=click.IntRange(min=0), default=30, show_default=True, help="Nets drawn from seeds.")
@click.option(
    "--machines",
    type=click.IntRange(min=1),
    help="With --graphs: accelerators, machines or parts, instead of the file's.",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Of everything random.")
@click.option(
    "--limit", type=click.FloatRange(min=0), default=20.0, show_default=True, help="Seconds to search one row, at most."
)
@click.option("--json", "as_json", is_flag=True, help="Print rows and placements as JSON, for programs.")
@click.argument("more", nargs=-1, type=click.Path(path_type=Path))
def plan_command(
    graphs: tuple[Path, ...],
    measure: bool,
    seeds: int,
    machines: int | None,
    seed: int,
    limit: float,
    as_json: bool,
    more: tuple[Path, ...],
) -> None:
    """Print how good our plans are beside those that others would make.

    Without options: of the bundled tasks, of nets whose good cuts are known and of nets drawn from seeds, by the
    simulator. With --measure: steps of bundled tasks, as predicted after a probe and as two worker processes really
    take them. With --graphs: of published graphs, beside the results published with them; a row's objective is the
    largest load of a device for dnn-partitioning, the seconds of the slowest stage or transfer for PipeDream, and the
    weight of what is cut for METIS and hMETIS. Known results are printed and never used.
    """
    if more and not graphs:
        raise click.UsageError(f"{more[0]} is read with --graphs alone: cutset bench plan --graphs {more[0]}")
    if measure:
        _prediction(as_json=as_json)
        return
    if not graphs:
        _peers(seeds, as_json=as_json)
        return
    from .device_placement.graph_files import graph_files
    from .device_placement.benchmark import rows_of
    from .device_placement.graph_table import as_json_text, print_rows

    files = graph_files((*graphs, *more))
    rows = [row for file in files for row in rows_of(file, machines=machines, seed=seed, limit_s=limit)]
    if as_json:
        click.echo(as_json_text(rows))
    else:
        print_rows(rows)


@bench.command("rules")
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True, help="Turns of each rule.")
@click.option("--json", "as_json", is_flag=True, help="Print all rounds as JSON, for programs.")
def rules_command(rounds: int, as_json: bool) -> None:
    """Print how fast each rule changes parameters by 100 MB of gradients, on one thread, beside memcpy.

    Alone, and as a shard applies a push, which also looks whether all stays finite. Medians of rounds in which the rule
    and memcpy take turns.
    """
    import json

    from .transport.optimizers import as_data, measure, print_rows

    rows = measure(rounds=rounds)
    if as_json:
        click.echo(json.dumps({"rows": [as_data(row) for row in rows]}))
    else:
        print_rows(rows)


def _peers(seeds: int, *, as_json: bool) -> None:
    import json

    from .planner.baselines import as_data, print_rows, rows_of
    from .planner.models import subjects

    rows = []
    for row in rows_of(subjects(seeds=seeds)):
        rows.append(row)
        click.echo(f"{row.net} on {row.machines} machines: {row.plan} ({row.plan_s:.1f} s)", err=True)
    if as_json:
        click.echo(json.dumps({"rows": [as_data(row) for row in rows]}))
    else:
        print_rows(rows)


def _prediction(*, as_json: bool) -> None:
    import json

    from ..probe.measure_machine import probe
    from .planner.prediction import as_data, print_rows, rows_of

    probed = probe(2)
    rows = rows_of(probed.cluster, lambda said: click.echo(said, err=True))
    if as_json:
        click.echo(json.dumps({"rows": [as_data(row) for row in rows]}))
    else:
        print_rows(rows)
