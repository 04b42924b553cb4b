"""The `cutset` command. Heavy imports happen inside the commands, so that `--help` answers at once.

Exit codes: 0 ok, 1 bug, 2 usage, 3 bad input, 4 infeasible plan, 5 network, 6 worker or shard lost, 7 diverged,
8 checkpoint, 130 interrupted, 143 terminated.
"""

import json
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ..partition.errors import CutsetError
from .bench.commands import bench
from .eval_command import evaluate
from .options import json_option, plan_options, seed_option, task_options, training_options
from .probe_command import probe

if TYPE_CHECKING:
    from .load import TaskSpec
    from .prepare import Options

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
        from .console import print_error

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
    arguments stand in brackets. Bundled tasks: cutset.models:digits, :digits_local, :mnist, :mnist_conv, and on
    synthetic data :speech, :local_80m, :local_330m, :local_1700m, :alexnet, ":resnet(blocks=(3,4,6,3))",
    ":transformer(layers=12,width=768)".
    """


cli.add_command(probe)
cli.add_command(bench)
cli.add_command(evaluate)


def _spec(
    task: str,
    data: str | None,
    inputs: tuple[str, ...],
    batch: int | None,
    blocks: tuple[str, ...] = (),
    autocast: str | None = None,
) -> "TaskSpec":
    from .load import TaskSpec

    return TaskSpec(task, data, inputs, batch, blocks, autocast or "")


@contextmanager
def _stdout_kept(as_json: bool) -> Iterator[None]:
    """With --json, what the user's code prints goes to stderr, as stdout is the result's."""
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield


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
    from ..partition.placement import to_json
    from .capturing import captured
    from .console import placement_summary
    from .load import load_task
    from .planning import Wanted, micro_spec, planned

    wanted = Wanted(machines, most, cluster, only, objective, pins, micro_batches, seed)
    wanted.resolved()  # what is wrong with the machines is said before the model is captured
    spec = _spec(task, data, inputs, batch, blocks, autocast)
    with _stdout_kept(as_json):
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
@click.option("--data", metavar="KIND:DIR", help="Data on disk, where the task needs it.")
@click.option("--input", "inputs", multiple=True, metavar="SHAPE", help="For a bare module.")
@json_option
def check(placement: Path, task: str | None, data: str | None, inputs: tuple[str, ...], as_json: bool) -> None:
    """Check that a PLACEMENT file is whole and fits its model (or TASK)."""
    from ..partition.placement import load
    from .capturing import captured
    from .planning import matched

    found = load(placement)
    with _stdout_kept(as_json):
        ready = captured(_spec(task or found.model, data, inputs, found.batch, tuple(found.blocks), found.autocast))
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
    from ..partition.placement import load, to_json
    from .console import placement_summary
    from .picture import cut_map
    from .report import placement_page

    found = load(placement)
    for path, picture in ((html, placement_page), (svg, cut_map)):
        if path is not None:
            _write(path, picture(found))
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
    from .capturing import captured
    from .inspection import inspection, print_inspection

    with _stdout_kept(as_json):
        facts = inspection(captured(_spec(task, data, inputs, batch, blocks, autocast)))
    if as_json:
        click.echo(json.dumps(facts, indent=1))
    else:
        print_inspection(facts)


@cli.command()
def schema() -> None:
    """Print the JSON Schema of the placement file."""
    from ..partition import placement

    click.echo(json.dumps(placement.schema(), indent=1))


@cli.command()
@task_options
@click.option("--machines", type=int, help="Machines to cut each replica over; 1 where nothing is said.")
@click.option(
    "--placement", "placement_file", type=click.Path(path_type=Path), help="A placement file, instead of --machines."
)
@plan_options
@training_options
@seed_option
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/last"),
    show_default=True,
    help="The run folder.",
)
@json_option
def train(
    task: str,
    autocast: str | None,
    blocks: tuple[str, ...],
    data: str | None,
    inputs: tuple[str, ...],
    batch: int | None,
    machines: int | None,
    placement_file: Path | None,
    most: int | None,
    cluster: Path | None,
    objective: str,
    pins: tuple[str, ...],
    micro_batches: int,
    only: str,
    method: str,
    rule: str,
    lr: float,
    schedule: str,
    clip_norm: float,
    fetch: int,
    push: int,
    overlap: bool,
    warm_start: int,
    replicas: int,
    restarts: int,
    shards: int | None,
    init: Path | None,
    epochs: int,
    baseline: bool,
    target: float | None,
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Train TASK: replicas of the cut model through parameter server shards, beside one process with the same samples.

    The run folder then holds result.json, report.html, placement.json, model.safetensors (a plain state_dict),
    trace.json (some steps of a cut model, for ui.perfetto.dev), checkpoint/ and logs/.
    """
    from ..partition.placement import load
    from ..ps.downpour import Downpour
    from ..ps.rule import rule as rule_named
    from .planning import Wanted
    from .prepare import Options

    _check_method(method)
    counted = machines is not None or most is not None or cluster is not None
    if placement_file is not None and (counted or pins or only or blocks or autocast or micro_batches != 1):
        raise click.UsageError("give --placement, or what to plan for (--machines and its kin), not both")
    if not counted:
        machines = 1
    options = Options(
        spec=_spec(task, data, inputs, batch, blocks, autocast),
        method=Downpour(fetch=fetch, push=push, warm_start=warm_start, overlap=overlap),
        rule=rule_named(rule, lr),
        out=out,
        wanted=Wanted(machines, most, cluster, only, objective, pins, micro_batches, seed),
        placement=load(placement_file) if placement_file is not None else None,
        replicas=replicas,
        shards=1 if shards is None else shards,
        spread=shards is None,
        init=init,
        epochs=epochs,
        seed=seed,
        target=target,
        baseline=baseline,
        restarts=restarts,
        schedule=schedule,
        clip_norm=clip_norm,
    )
    _train(options, as_json=as_json)


def _check_method(method: str) -> None:
    from ..partition.errors import UsageError

    if method != "downpour":
        raise UsageError("E224", f"no method {method!r}; there is downpour", fix="--method downpour")


@cli.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/demo"),
    show_default=True,
    help="The run folder.",
)
@json_option
def demo(out: Path, as_json: bool) -> None:
    """Train on real handwritten digits: 2 replicas of a model that METIS cuts over 2 machines, beside one process."""
    from ..ps.downpour import Downpour
    from ..ps.rule import Adagrad
    from .load import TaskSpec
    from .planning import Wanted
    from .prepare import Options

    options = Options(
        spec=TaskSpec("cutset.models:digits_local"),
        method=Downpour(),
        rule=Adagrad(0.05),
        out=out,
        wanted=Wanted(machines=2, only="metis"),
        replicas=2,
        shards=2,
        epochs=20,
        target=0.95,
    )
    _train(options, as_json=as_json)


def _train(options: "Options", *, as_json: bool) -> None:
    from .console import result_table
    from .prepare import prepare
    from .report import run_page
    from .train import TRACE, run

    with _stdout_kept(as_json):
        job = prepare(options)
    if not as_json:
        plan = job.placement
        said = f"cut of {plan.model}: {plan.winner}. {plan.verdict}" if plan is not None else "\n".join(job.notes)
        click.echo(f"{said}\n", err=True)
    with _Follow() as follow:
        result = run(job, follow.tell, note=follow.note)
    _write(options.out / "result.json", json.dumps(result, indent=1) + "\n")
    _write(options.out / "report.html", run_page(job.placement, result))
    if as_json:
        click.echo(json.dumps(result))
        return
    result_table(result)
    files = [("report", "report.html"), ("weights", "model.safetensors")]
    files += [("trace for ui.perfetto.dev", TRACE)] if result["measured"] else []
    click.echo("\n" + "    ".join(f"{what}: {options.out / name}" for what, name in files))


class _Follow:
    """Shows one progress line a run, one after the other."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._name = ""

    def __enter__(self) -> "_Follow":
        return self

    def __exit__(self, *exit_: Any) -> None:
        if self._shown is not None:
            self._shown.__exit__(*exit_)

    def tell(self, name: str, step: int, steps: int, loss: float) -> None:
        """Show that run `name` has done `step` of `steps`."""
        from .console import Progress

        if name != self._name:
            self.__exit__(None, None, None)
            self._name, self._shown = name, Progress(name, steps).__enter__()
        self._shown.update(step, f"loss {loss:.4f}")

    def note(self, words: str) -> None:
        """Say something on a line of its own."""
        self.__exit__(None, None, None)
        self._name, self._shown = "", None
        click.echo(words, err=True)


def _write(path: Path, text: str) -> None:
    from ..partition.errors import UsageError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError("E222", f"cannot write {path}: {error.strerror}", fix="name a folder that exists") from error
