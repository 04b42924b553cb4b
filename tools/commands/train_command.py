"""The commands `cutset train` and `cutset demo`."""

from typing import TYPE_CHECKING, Any

import click

from ...runtime.hosts.versions import read_cores
from ..config.run_config import RunConfig
from ..hosts.early_host import open_early_host
from ..run_folder import BEST_WEIGHTS, REPORT, TRACE, WEIGHTS
from ..run_listener import RunListener, StepReport
from ..task.plan_request import HERE
from ..units import format_number, format_percent
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

    This machine is measured for some seconds as it is now, and a locally connected net, as DistBelief's are, is cut
    over two processes as is best for it. Then it is trained, by one process with all cores and by the two that have it
    together.
    """
    config = RunConfig(
        "cutset.models:digits_large",
        machines=2,
        cluster=HERE,
        method="hogwild",
        epochs=10,
        optimizer="adagrad",
        lr=0.02,
        target=0.95,
        **options,
    )
    click.echo("measuring this machine and the net, for some seconds", err=True)
    result = _train(config, as_json=as_json, again=True)
    if not as_json and result:
        click.echo(f"\n{_describe_gain(result)}")


def _describe_gain(result: dict[str, Any]) -> str:
    """Return in a sentence what the cut has gained, or has not."""
    alone, cut = (row["samples"] / row["seconds"] for row in result["rows"])
    cores = format_number(read_cores(), "core")
    times = f"{cut / alone:.2f} times as fast as one process with all {cores}"
    gained = "Gained" if cut > alone else "Nothing gained on this machine"
    reached = " and ".join(format_percent(row["test_accuracy"], digits=1) for row in reversed(result["rows"]))
    return f"{gained}: the two processes that have the cut net train {times}; test accuracy {reached}."


def _train(config: RunConfig, *, as_json: bool, again: bool = False) -> dict[str, Any]:
    """Load, capture, plan and configure (`prepare_on`), then run and report; return the result, if it is here.

    again: measure this machine for the plan, whatever is known of it.
    """
    with open_early_host(config) as here:  # before torch is imported, which takes a second
        if config.placement is None and config.plan_request.count > 1:
            from ...partition.mincut.kahypar import load_kahypar

            load_kahypar()  # while torch is not there
        from ..hosts.engine import serve_if_member
        from ..train import prepare_on, run, save_result

        if serve_if_member(config.on):
            return {}
        with keep_stdout(as_json), prepare_on(here, config, again=again) as job:
            if not as_json:
                _announce(job)
            with _ProgressLines() as lines:
                result = run(job, lines, here=here)
            save_result(job, result)
    if as_json:
        print_json(result)
        return result
    from ..report.console import print_result

    print_result(result)
    files = [("report", REPORT), ("weights", WEIGHTS)]
    files += [(f"best {result['best']['score']}", BEST_WEIGHTS)] if result.get("best") else []
    files += [("trace for ui.perfetto.dev", TRACE)] if result["measured"] else []
    click.echo("\n" + "    ".join(f"{what}: {job.out / name}" for what, name in files))
    return result


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
