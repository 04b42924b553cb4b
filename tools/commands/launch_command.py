"""The command `cutset launch`."""

import os
from pathlib import Path
from typing import Any

import click

from ...errors import BadInput
from ..config.run_config import RunConfig
from ..run_folder import REPORT, WEIGHTS
from ..run_listener import RunListener
from .config_options import GroupedCommand, config_options

EXAMPLES = """\b
Examples:
  cutset launch --replicas 2 train.py
  cutset launch --replicas 2 --method diloco:every=50 train.py --epochs 3
  cutset launch --replicas 2 --resume runs/last train.py --epochs 3
"""
OPTIONS = (
    *("replicas", "shards", "compress", "restarts", "method", "ema", "seed"),
    *("out", "tensorboard", "overwrite", "init", "resume", "checkpoint_every", "keep_checkpoints"),
)


@click.command(
    "launch",
    short_help="Run SCRIPT, which keeps its own loop, as replicas.",
    cls=GroupedCommand,
    epilog=EXAMPLES,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@config_options(*OPTIONS)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(script: str, arguments: tuple[str, ...], **options: Any) -> None:
    """Run SCRIPT as replicas of one training, with ARGUMENTS, each with a loop of its own.

    The script calls cutset.connect() and run.prepare(model, optimizer, data): its optimizer then pushes gradients to
    shards. What replica 0 prints is shown. The run folder holds what that of `cutset train` does.
    """
    from ..job.prepare import prepare_run
    from ..job.process_specs import Script
    from ..scripts.script_job import prepare_script
    from ..train import run, save_result

    path = Path(script)
    if not path.is_file():
        raise BadInput("E301", f"there is no script {script}", fix="name a file: cutset launch train.py")
    config = RunConfig(path.name, baseline=False, **options)
    named = Script(os.path.abspath(path), list(arguments))
    with prepare_run(config, lambda settled, *, fresh: prepare_script(settled, named, fresh=fresh)) as job:
        for note in job.notes:
            click.echo(note, err=True)
        result = run(job, _ShownOutput())
        save_result(job, result)
    click.echo(result["verdict"], err=True)
    click.echo(f"report: {job.out / REPORT}    weights: {job.out / WEIGHTS}", err=True)


class _ShownOutput(RunListener):
    """Shows what the script of replica 0 prints, and notices."""

    def on_output(self, text: str) -> None:
        """Print it."""
        click.echo(text, nl=False)

    def on_notice(self, words: str) -> None:
        """Print a notice on a line of its own."""
        click.echo(words, err=True)
