"""The `cutset` command. Heavy imports happen inside the commands, so that `--help` answers at once.

Exit codes: 0 ok, 1 bug, 2 usage, 3 bad input, 4 infeasible plan, 5 network, 6 worker or shard lost, 7 diverged,
8 checkpoint, 130 interrupted, 143 terminated.
"""

import json
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from ...errors import CutsetError
from ..bench.commands import bench
from .evaluate_command import evaluate
from .methods_command import methods_command
from .options import json_option, plan_options, seed_option, task_options, task_spec
from .output import stdout_kept, write_text
from .probe_command import probe
from .scale_command import scale
from .train_command import demo, train
from .words_command import words

INTERRUPTED, TERMINATED = 130, 143


def main() -> NoReturn:
    """The console script: runs a command and turns errors into messages and exit codes."""
    signal.signal(signal.SIGTERM, _terminate)
    stdout = sys.stdout
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; every process of the run is ended", err=True)
        code = INTERRUPTED
    except CutsetError as error:
        from ..report.console import print_error

        print_error(error)
        code = error.exit_code
    except SystemExit as end:
        # click ends so, on another stdout, where the reader of a pipe is gone: `cutset schema | head -1` is no error.
        code = end.code if sys.stdout is stdout else 0
    except Exception:
        traceback.print_exc()
        click.echo("this is a bug in cutset; please report it with the lines above", err=True)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cutset")
def cli() -> None:
    """Cuts a PyTorch model over the machines you have and trains it without a fast network.

    TASK names a model: pkg.module:factory or file.py:factory, giving a cutset.Task or an nn.Module; a factory's
    arguments stand in brackets. Bundled tasks: cutset.models:digits, :digits_local, :digits_softmax; on files :mnist,
    :mnist_conv, :mnist_softmax, :logistic, :word2vec; on synthetic data :speech, :local_80m, :local_330m, :local_1700m,
    :alexnet, ":resnet(blocks=(3,4,6,3))", ":transformer(layers=12,width=768)".
    """


for command in (probe, scale, bench, evaluate, train, demo, methods_command, words):
    cli.add_command(command)


@cli.command()
@task_options
@click.option("--machines", type=int, help="Machines to cut the model over; all are used. 2 where nothing is said.")
@plan_options
@seed_option
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Where to write the placement.")
@json_option
def plan(
    task: str,
    autocast: str | None,
    blocks: tuple[str, ...],
    data: str | None,
    inputs: tuple[str, ...],
    batch: int | None,
    machines: int | None,
    most: int | None,
    cluster: Path | None,
    objective: str,
    pins: tuple[str, ...],
    micro_batches: int,
    only: str,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Cut TASK over machines and write the placement file.

    Every candidate cut is simulated; the fastest that fits in memory and gives every machine a share of the work wins.
    The verdict says whether the machines pay; --max-machines leaves out those that do not.
    """
    from ...partition.placement.placement_file import to_json
    from ..task.capture_task import captured
    from ..report.console import placement_summary
    from ..task.load_task import load_task
    from ..task.plan_task import Wanted, micro_spec, planned

    wanted = Wanted(machines, most, cluster, only, objective, pins, micro_batches, seed)
    wanted.resolved()  # what is wrong with the machines is said before the model is captured
    spec = task_spec(task, data, inputs, batch, blocks, autocast)
    with stdout_kept(as_json):
        loaded = load_task(spec)
        ready = captured(micro_spec(spec, loaded, micro_batches), loaded)
        placement = planned(ready, spec, wanted)
    if out is not None:
        placement.save(out)
    if as_json:
        click.echo(to_json(placement), nl=False)
        return
    placement_summary(placement)
    for note in ready.notes:
        click.echo(f"note: {note}")
    if out is not None:
        click.echo(f"\nwritten to {out}; look at it with: cutset show {out}")


@cli.command()
@click.argument("placement", type=click.Path(path_type=Path))
@click.argument("task", required=False)
@click.option("--data", metavar="KIND:PATH", help="Data on disk, where the task needs it.")
@click.option("--input", "inputs", multiple=True, metavar="SHAPE", help="For a bare module.")
@json_option
def check(placement: Path, task: str | None, data: str | None, inputs: tuple[str, ...], as_json: bool) -> None:
    """Check that a PLACEMENT file is whole and fits its model (or TASK)."""
    from ...partition.placement.placement_file import load
    from ..task.capture_task import captured
    from ..task.plan_task import matched

    found = load(placement)
    with stdout_kept(as_json):
        ready = captured(task_spec(task or found.model, data, inputs, found.batch, tuple(found.blocks), found.autocast))
    cut = matched(ready, found)
    facts = {"placement": str(placement), "model": task or found.model, "machines": cut.machines, "ok": True}
    click.echo(json.dumps(facts) if as_json else f"{placement} fits {facts['model']}: {cut.machines} machines")


@cli.command()
@click.argument("placement", type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write one self-contained page.")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write the cut map alone.")
@json_option
def show(placement: Path, html: Path | None, svg: Path | None, as_json: bool) -> None:
    """Show a PLACEMENT file: in words, and as a picture with --html or --svg."""
    from ...partition.placement.placement_file import load, to_json
    from ..report.console import placement_summary
    from ..figures.picture import cut_map
    from ..report.pages import placement_page

    found = load(placement)
    for path, picture in ((html, placement_page), (svg, cut_map)):
        if path is not None:
            write_text(path, picture(found))
    if as_json:
        click.echo(to_json(found), nl=False)
        return
    placement_summary(found)
    for path in (html, svg):
        if path is not None:
            click.echo(f"written to {path}")
    if html is None and svg is None:
        click.echo(f"\na picture of the cut: cutset show {placement} --html cut.html")


@cli.command()
@task_options
@json_option
def inspect(
    task: str,
    autocast: str | None,
    blocks: tuple[str, ...],
    data: str | None,
    inputs: tuple[str, ...],
    batch: int | None,
    as_json: bool,
) -> None:
    """List TASK's operators: their row in the table, loops and axes, FLOPs, and what share of the FLOPs can be cut."""
    from ..task.capture_task import captured
    from ..report.inspect_report import inspection, print_inspection

    with stdout_kept(as_json):
        facts = inspection(captured(task_spec(task, data, inputs, batch, blocks, autocast)))
    if as_json:
        click.echo(json.dumps(facts, indent=1))
    else:
        print_inspection(facts)


@cli.command()
def schema() -> None:
    """Print the JSON Schema of the placement file."""
    from ...partition.placement import placement_file as placement

    click.echo(json.dumps(placement.schema(), indent=1))
