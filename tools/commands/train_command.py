"""The commands `cutset train` and `cutset demo`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import json_option, plan_options, seed_option, task_options, task_spec, training_options
from .output import stdout_kept, write_text

if TYPE_CHECKING:
    from ..job.prepare import Options


@click.command()
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
    compress: str | None,
    on_divergence: str,
    rule: str,
    lr: float,
    schedule: str,
    clip_norm: float,
    fetch: int | None,
    push: int | None,
    overlap: bool | None,
    warm_start: int | None,
    replicas: int,
    restarts: int,
    shards: int | None,
    init: Path | None,
    checkpoint_every: str,
    keep: int,
    resume: Path | None,
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
    from ...partition.placement.placement_file import load
    from ...ps.slices.compression import compression
    from ...ps.methods.registry import method as method_named
    from ...ps.optimizers.registry import rule as rule_named
    from ..task.plan_task import Wanted
    from ..job.prepare import Options

    said = {"fetch": fetch, "push": push, "warm_start": warm_start, "overlap": overlap}
    given = {name: value for name, value in said.items() if value is not None}
    counted = machines is not None or most is not None or cluster is not None
    if placement_file is not None and (counted or pins or only or blocks or autocast or micro_batches != 1):
        raise click.UsageError("give --placement, or what to plan for (--machines and its kin), not both")
    if not counted:
        machines = 1
    chosen = method_named(method, given)
    if chosen.name == "sandblaster":
        _demand_none_of("rule", "lr", "epochs", "target", "clip_norm")
    options = Options(
        spec=task_spec(task, data, inputs, batch, blocks, autocast),
        method=chosen,
        rule=rule_named(rule, lr),
        out=out,
        wanted=Wanted(machines, most, cluster, only, objective, pins, micro_batches, seed),
        placement=load(placement_file) if placement_file is not None else None,
        replicas=replicas,
        shards=1 if shards is None else shards,
        spread=shards is None,
        init=init,
        checkpoint_every=checkpoint_every,
        keep=keep,
        resume=resume,
        epochs=epochs,
        seed=seed,
        target=target,
        baseline=baseline,
        restarts=restarts,
        schedule=schedule,
        clip_norm=clip_norm,
        compression=None if compress is None else compression(compress),
        on_divergence=on_divergence,
    )
    _run(options, as_json=as_json)


def _demand_none_of(*names: str) -> None:
    """UsageError where an option was given that means nothing to a batch method."""
    from ...errors import UsageError

    context = click.get_current_context()
    given = [name for name in names if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if given:
        option = given[0].replace("_", "-")
        facts = f"--{option} means nothing to method sandblaster, which looks at all samples in each iteration"
        raise UsageError("E296", facts, fix=f"leave --{option} out; see --method sandblaster:iterations=40,step=1")


@click.command()
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
    from ...ps.methods.downpour import Downpour
    from ...ps.optimizers.standard import Adagrad
    from ..task.load_task import TaskSpec
    from ..task.plan_task import Wanted
    from ..job.prepare import Options

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
    _run(options, as_json=as_json)


def _run(options: "Options", *, as_json: bool) -> None:
    from ..report.console import result_table
    from ..job.prepare import prepare
    from ..report.pages import run_page
    from ..train import TRACE, run

    with stdout_kept(as_json):
        job = prepare(options)
    if not as_json:
        plan = job.placement
        said = f"cut of {plan.model}: {plan.winner}. {plan.verdict}" if plan is not None else "\n".join(job.notes)
        click.echo(f"{said}\n", err=True)
    with _Follow() as follow:
        result = run(job, follow.tell, note=follow.note)
    write_text(options.out / "result.json", json.dumps(result, indent=1) + "\n")
    write_text(options.out / "report.html", run_page(job.placement, result))
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
        from ..report.console import Progress

        if name != self._name:
            self.__exit__(None, None, None)
            self._name, self._shown = name, Progress(name, steps).__enter__()
        self._shown.update(step, f"loss {loss:.4f}")

    def note(self, words: str) -> None:
        """Say something on a line of its own."""
        self.__exit__(None, None, None)
        self._name, self._shown = "", None
        click.echo(words, err=True)
