"""The commands `cutset train` and `cutset demo`."""

from typing import TYPE_CHECKING, Any

import click

from ..config.run_config import RunConfig
from ..run_folder import BEST_WEIGHTS, REPORT, TRACE, WEIGHTS
from ..run_listener import RunListener, StepReport
from .config_options import ALL_OPTIONS, GroupedCommand, config_options
from .output import json_option, keep_stdout, print_json

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
    trace.json (some steps of a cut model, for ui.perfetto.dev), checkpoint/ and logs/, with --monitor best.safetensors.
    """
    _train(RunConfig(task, **options), as_json=as_json)


@click.command("demo", cls=GroupedCommand)
@config_options("out", "overwrite")
@json_option
def demo(as_json: bool, **options: Any) -> None:
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
        **options,
    )
    _train(config, as_json=as_json)


def _train(config: RunConfig, *, as_json: bool) -> None:
    """Load, capture, plan and configure (`prepare_run`), then run and report."""
    from ..hosts.engine import serve_if_member
    from ..job.prepare import prepare_run
    from ..report.console import print_result
    from ..train import run, save_result

    if serve_if_member(config.on):
        return
    with keep_stdout(as_json), prepare_run(config) as job:
        if not as_json:
            _announce(job)
        with _ProgressLines() as lines:
            result = run(job, lines)
        save_result(job, result)
    if as_json:
        print_json(result)
        return
    print_result(result)
    files = [("report", REPORT), ("weights", WEIGHTS)]
    files += [(f"best {result['best']['score']}", BEST_WEIGHTS)] if result.get("best") else []
    files += [("trace for ui.perfetto.dev", TRACE)] if result["measured"] else []
    click.echo("\n" + "    ".join(f"{what}: {job.out / name}" for what, name in files))


def _announce(job: "Job") -> None:
    """Say on stderr how the model is cut, and what the user should know, before the run begins."""
    plan = job.placement
    cut = [] if plan is None else [f"cut of {plan.model}: {plan.winner}. {plan.verdict}"]
    click.echo("\n".join([*cut, *job.notes, ""]), err=True)


class _ProgressLines(RunListener):
    """Shows a progress line for each run, one after the other."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._name = ""

    def __enter__(self) -> "_ProgressLines":
        return self

    def __exit__(self, *exit_: Any) -> None:
        if self._shown is not None:
            self._shown.__exit__(*exit_)

    def on_step(self, report: StepReport) -> None:
        """Show how many steps a run has done."""
        from ..report.console import Progress

        if report.run != self._name:
            self.__exit__(None, None, None)
            self._name, self._shown = report.run, Progress(report.run, report.steps).__enter__()
        self._shown.update(report.step, f"loss {report.loss:.4f}")

    def on_notice(self, words: str) -> None:
        """Print a notice on a line of its own."""
        self.__exit__(None, None, None)
        self._name, self._shown = "", None
        click.echo(words, err=True)
