"""The commands that make plans and show them: `cutset plan`, `show`, `check`, `inspect` and `schema`."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...errors import BadInput
from ..output_file import PAGE, PICTURE, PLACEMENT, check_output, write_output
from ..path_option import PathOption
from .config_options import (
    PLAN_OPTIONS,
    TASK_OPTIONS,
    GroupedCommand,
    config_options,
    read_plan_request,
    read_task_spec,
    refuse_both,
)
from .output import json_option, keep_stdout, print_json

if TYPE_CHECKING:
    from ...partition.cluster.machines import Cluster
    from ..report.compare_placements import PlacementDifference
    from ..task.plan_task import PlannedTask
    from ..whole_run.plan_task_run import PlannedRun
    from ..whole_run.what_if import ChangeEffect

PLAN_EXAMPLES = """\b
Examples:
  cutset plan cutset.models:digits_local --machines 4
  cutset plan net.py:task --cluster cluster.toml --max-machines 8 -o cut.json
  cutset plan net.py:task --cluster cluster.toml --method downpour   # a whole run
  cutset plan net.py:task --machines 4 --faster-network '10 Gbit/s' --add-machine
  cutset plan --diff cut.json other.json
  cutset plan net.py:net --input 32x3x224x224 --objective memory --pin 'head=0'
"""


@click.command("plan", cls=GroupedCommand, epilog=PLAN_EXAMPLES)
@click.argument("task")
@config_options(*TASK_OPTIONS, *PLAN_OPTIONS, "seed", defaults={"machines": "2"})
@click.option(
    "--method",
    metavar="NAME[:OPTION=VALUE,...]",
    help="Plan a whole run by this method: how many replicas train, and of how many machines each.",
)
@click.option("--faster-network", metavar="RATE", help="Say also what a network of this speed would give: '10 Gbit/s'.")
@click.option("--add-machine", is_flag=True, help="Say also what one more machine, like the best one, would give.")
@click.option("--diff", type=PathOption(), help="Say what differs from this placement file; TASK may be another one.")
@click.option("-o", "--out", type=PathOption(may_be_folder=False), help="Write the placement to this file.")
@json_option
def plan(task: str, diff: Path | None, out: Path | None, as_json: bool, **options: Any) -> None:
    """Plan how to split TASK across machines.

    Every candidate is simulated. The best one by --objective that fits in memory and gives work to every machine wins.
    The verdict says whether adding machines helps; --max-machines leaves out those that do not. With --method the plan
    is of a whole run: replicas side by side, each on machines of its own, and what they exchange with parameter shards.
    """
    from ...partition.placement.placement_file import load, to_json
    from ..report.compare_placements import compare_placements

    earlier = None if diff is None else load(diff)
    if earlier is not None and task.endswith(".json") and Path(task).is_file():
        _print_difference(compare_placements(earlier, load(task)), as_json)
        return
    if out is not None:
        check_output(out, PLACEMENT)
    planning = _plan(task, as_json, options)
    placement = planning.replica.placement
    if out is not None:
        write_output(out, to_json(placement), PLACEMENT)
    difference = None if earlier is None else compare_placements(earlier, placement)
    if as_json:
        _print_planning_json(planning, difference)
        return
    _print_planning(planning)
    if difference is not None:
        click.echo(f"\nbeside {diff}:")
        _print_difference(difference, as_json=False)
    if out is not None:
        click.echo(f"\nwritten to {out}; look at it with: cutset show {out}")


@dataclass(frozen=True)
class _Planning:
    """A plan of a replica, that of a whole run if it was asked for, and what changes of the machines would give.

    confidence: what the predicted step hangs on, in words.
    """

    replica: "PlannedTask"
    run: "PlannedRun | None"
    effects: "Sequence[ChangeEffect]"
    confidence: str


def _plan(task: str, as_json: bool, options: dict[str, Any]) -> _Planning:
    """Plan a task, and again for each change that is asked for."""
    from ...partition.ir.garbage import leave_garbage
    from ...partition.mincut.kahypar import load_kahypar

    with leave_garbage():  # imports make none
        load_kahypar()  # while torch is not there
        from ...partition.planner.pins import name_pins
        from ..probe.confidence import describe_confidence
        from ..probe.first_probe import find_machines
        from ..probe.measured_verdict import measure_close
        from ..task.capture_task import capture_task
        from ..task.load_task import load_task
        from ..task.plan_task import micro_batch_spec, plan_task
        from ..whole_run.what_if import list_changes, try_changes

    spec, request, text = read_task_spec(task, options), read_plan_request(options), options["method"]
    method = None
    if text is not None:
        from ...ps.methods.registry import parse_method
        from ..whole_run.plan_task_run import plan_task_run

        method = parse_method(text)
    if method is not None and request.max_machines is not None:
        raise refuse_both("--max-machines", "--method, which leaves machines out by itself")
    cluster = request.load_cluster()  # so that errors in the machines are reported before the model is captured
    request = replace(request, pins=name_pins(request.pins, cluster))  # whose numbers change with the machines
    wanted = {name: options[name] for name in ("faster_network", "add_machine")}
    list(list_changes(cluster, **wanted))  # so are those in the changes
    tell = partial(click.echo, err=True)
    with keep_stdout(as_json):
        loaded = load_task(spec)
        micro_spec = micro_batch_spec(spec, loaded, request.micro_batches)
        capture = capture_task(micro_spec, loaded)
        cluster = find_machines(capture, micro_spec, request, tell) or request.load_cluster(graph=capture.train)
        changes = list(list_changes(cluster, **wanted))

        def plan_for(machines: "Cluster") -> "tuple[PlannedRun | None, PlannedTask]":
            if method is None:
                return None, plan_task(capture, spec, request, machines)
            run = plan_task_run(capture, spec, request, method, method_text=text, cluster=machines, tell=tell)
            return run, run.replica

        def measure(machines: "Cluster") -> float:
            run, planned = plan_for(machines)
            if run is not None:
                return run.run.chosen.samples_per_s
            return planned.placement.samples / planned.placement.predicted.step_s

        run, replica = plan_for(cluster)
        if run is None:
            replica = measure_close(replica, capture, micro_spec, request, cluster, tell)
        now = run.run.chosen.samples_per_s if run else replica.placement.samples / replica.placement.predicted.step_s
        confidence = describe_confidence(replica, cluster, request)
        return _Planning(replica, run, tuple(try_changes(changes, measure, now)), confidence)


def _print_planning(planning: _Planning) -> None:
    from ..report.console import print_placement
    from ..report.whole_run import describe_effect, print_planned_run

    if planning.run is not None:
        print_planned_run(planning.run)
    print_placement(planning.replica.placement)
    for effect in planning.effects:
        click.echo(describe_effect(effect))
    for note in planning.replica.notes:
        click.echo(f"note: {note}")
    if planning.confidence:
        click.echo(planning.confidence)


def _print_planning_json(planning: _Planning, difference: "PlacementDifference | None") -> None:
    """Print the placement as its file has it; with more to say, an object with the placement in it."""
    import msgspec

    from ...partition.placement.placement_file import to_json
    from ..report import compare_placements, whole_run

    placement = to_json(planning.replica.placement)
    if planning.run is None and not planning.effects and difference is None:
        click.echo(placement, nl=False)
        return
    plain = whole_run.to_plain(planning.run, planning.effects)
    if difference is not None:
        plain["difference"] = compare_placements.to_plain(difference)
    print_json({**plain, "placement": msgspec.json.decode(placement)}, indent=2)


def _print_difference(difference: "PlacementDifference", as_json: bool) -> None:
    from ..report.compare_placements import describe_difference, to_plain

    if as_json:
        print_json(to_plain(difference))
        return
    for line in describe_difference(difference):
        click.echo(line)


@click.command("show")
@click.argument("placement", type=PathOption())
@click.option("--html", type=PathOption(may_be_folder=False), help="Write a self-contained HTML page.")
@click.option("--svg", type=PathOption(may_be_folder=False), help="Write the picture of the cut as SVG.")
@json_option
def show(placement: Path, html: Path | None, svg: Path | None, as_json: bool) -> None:
    """Show a placement file as text, HTML or SVG."""
    from ...partition.placement.placement_file import load, to_json
    from ..figures.cut_map import render_cut_map
    from ..report.console import print_placement
    from ..report.pages import render_placement_page

    loaded = load(placement)
    formats = ((html, PAGE, render_placement_page), (svg, PICTURE, render_cut_map))
    outputs = [(path, kind, render) for path, kind, render in formats if path is not None]
    for path, kind, _ in outputs:
        check_output(path, kind)
    for path, kind, render in outputs:
        write_output(path, render(loaded), kind)
    if as_json:
        click.echo(to_json(loaded), nl=False)
        return
    print_placement(loaded)
    for path, _, _ in outputs:
        click.echo(f"written to {path}")
    if not outputs:
        click.echo(f"\na picture of the cut: cutset show {placement} --html cut.html")


@click.command("check", cls=GroupedCommand)
@click.argument("placement", type=PathOption())
@click.argument("task", required=False)
@config_options("data", "inputs", "trust_trace")
@click.option("--trust", is_flag=True, help="Without TASK: run the code that the file names, whatever it does.")
@json_option
def check(placement: Path, task: str | None, trust: bool, as_json: bool, **options: Any) -> None:
    """Check that a placement file fits its model.

    The file must be complete, and belong to TASK, or without TASK to the bundled model that it names. Code of other
    modules and files runs only if TASK or --trust says so.
    """
    from ...partition.placement.placement_file import load
    from ..task.capture_task import capture_task
    from ..task.load_task import load_task
    from ..task.plan_task import load_cut, with_placement
    from ..units import format_number

    loaded = load(placement)
    if task is None and not trust:
        _refuse_code(placement, loaded.model)
    model = loaded.model if task is None else task
    spec = with_placement(loaded, read_task_spec(model, {**options, "batch": loaded.batch}))
    with keep_stdout(as_json):
        capture = capture_task(spec, load_task(spec))
    cut = load_cut(capture, loaded)
    if as_json:
        print_json({"placement": str(placement), "model": model, "machines": cut.machines, "ok": True})
    else:
        click.echo(f"{placement} fits {model}: {format_number(cut.machines, 'machine')}")


def _refuse_code(placement: Path, model: str) -> None:
    """Raise BadInput where a file names a model that is not bundled: a file that somebody sent may name anything."""
    from ..task.factory_name import is_bundled

    if not is_bundled(model):
        facts = f"{placement} names the model {model!r}, whose code runs only if you name it yourself"
        command = shlex.join(["cutset", "check", str(placement), model])
        raise BadInput("E348", facts, fix=f"if you know that code: {command}")


@click.command("inspect", cls=GroupedCommand)
@click.argument("task")
@config_options(*TASK_OPTIONS)
@json_option
def inspect(task: str, as_json: bool, **options: Any) -> None:
    """List the operators of TASK.

    For each, print the sharding rule, the loops with their axes, and the FLOPs; at the end, the fraction of all FLOPs
    that can be split. Recurrent nets are listed step by step, the form of them that can be split.
    """
    from ..report.inspect_report import describe_capture, print_inspection
    from ..task.capture_task import capture_task, capture_unrolled
    from ..task.load_task import load_task

    spec = read_task_spec(task, options)
    with keep_stdout(as_json):
        capture = capture_task(spec, load_task(spec))
        capture = capture_unrolled(capture, spec) or capture
    facts = describe_capture(capture)
    if as_json:
        print_json(facts, indent=1)
    else:
        print_inspection(facts)


@click.command("schema")
def schema() -> None:
    """Print the JSON Schema of the placement file."""
    from ...partition.placement import placement_file

    print_json(placement_file.schema(), indent=1)
