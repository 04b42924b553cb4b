"""The commands `cutset train` and `cutset demo`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..config.run_config import RunConfig
from ..run_folder import REPORT, RESULT, TRACE, WEIGHTS
from .config_options import ALL_OPTIONS, GroupedCommand, config_options
from .output import json_option, keep_stdout, print_json, write_text

if TYPE_CHECKING:
    from ..job.job import Job

EXAMPLES = """\b
Examples:
  cutset train cutset.models:digits
  cutset train cutset.models:digits_local --machines 2 --replicas 2 --epochs 20
  cutset train net.py:task --method downpour:fetch=4,push=4 --optimizer adam --lr 0.001
  cutset train net.py:task --method sync --replicas 4 --compress topk:fraction=0.01
  cutset train net.py:task --checkpoint-every 5min; cutset train net.py:task --resume runs/last --epochs 2
"""


@click.command("train", cls=GroupedCommand, epilog=EXAMPLES)
@click.argument("task")
@config_options(*ALL_OPTIONS)
@json_option
def train(task: str, as_json: bool, **options: Any) -> None:
    """Train TASK with replicas and parameter servers.

    One process also trains on the same samples, for comparison; --no-baseline leaves this out. Afterwards the run
    folder holds config.json, result.json, report.html, placement.json, model.safetensors (a plain state_dict),
    trace.json (some steps of a cut model, for ui.perfetto.dev), checkpoint/ and logs/.
    """
    _train(RunConfig(task, **options), as_json=as_json)


@click.command("demo")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/demo"),
    show_default=True,
    help="The run folder.",
)
@json_option
def demo(out: Path, as_json: bool) -> None:
    """Train on handwritten digits, as a demonstration.

    Two replicas of a model that METIS cuts over two machines are compared with one process.
    """
    config = RunConfig(
        "cutset.models:digits_local",
        machines=2,
        candidates="metis",
        replicas=2,
        shards=2,
        epochs=20,
        optimizer="adagrad",
        lr=0.05,
        target=0.95,
        out=out,
    )
    _train(config, as_json=as_json)


def _train(config: RunConfig, *, as_json: bool) -> None:
    """Load, capture, plan and configure (`prepare`), then run and report."""
    from ..job.prepare import prepare
    from ..train import run

    with keep_stdout(as_json):
        job = prepare(config)
    if not as_json:
        _announce(job)
    with _ProgressLines() as lines:
        result = run(job, lines.show_progress, on_notice=lines.show_notice)
    _report(job, result, as_json=as_json)


def _announce(job: "Job") -> None:
    """Say on stderr how the model is cut, before the run begins."""
    plan = job.placement
    words = f"cut of {plan.model}: {plan.winner}. {plan.verdict}" if plan is not None else "\n".join(job.notes)
    click.echo(f"{words}\n", err=True)


def _report(job: "Job", result: dict[str, Any], *, as_json: bool) -> None:
    """Write the result and its page into the run folder, and print it."""
    import json

    from ..report.console import print_result
    from ..report.pages import render_run_page

    write_text(job.out / RESULT, json.dumps(result, indent=1) + "\n")
    write_text(job.out / REPORT, render_run_page(job.placement, result))
    if as_json:
        print_json(result)
        return
    print_result(result)
    files = [("report", REPORT), ("weights", WEIGHTS)]
    files += [("trace for ui.perfetto.dev", TRACE)] if result["measured"] else []
    click.echo("\n" + "    ".join(f"{what}: {job.out / name}" for what, name in files))


class _ProgressLines:
    """Shows a progress line for each run, one after the other."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._name = ""

    def __enter__(self) -> "_ProgressLines":
        return self

    def __exit__(self, *exit_: Any) -> None:
        if self._shown is not None:
            self._shown.__exit__(*exit_)

    def show_progress(self, name: str, step: int, steps: int, loss: float) -> None:
        """Show that run `name` has done `step` of `steps`."""
        from ..report.console import Progress

        if name != self._name:
            self.__exit__(None, None, None)
            self._name, self._shown = name, Progress(name, steps).__enter__()
        self._shown.update(step, f"loss {loss:.4f}")

    def show_notice(self, words: str) -> None:
        """Print a notice on a line of its own."""
        self.__exit__(None, None, None)
        self._name, self._shown = "", None
        click.echo(words, err=True)
