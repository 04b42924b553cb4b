"""The command `cutset watch`: a run while it lasts, or as it ended, in the terminal or in a browser."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..path_option import PathOption
from ..run_folder import LAST

if TYPE_CHECKING:
    from ..watching.run_follower import RunFollower


@click.command("watch", short_help="Show a run while it lasts, here or in a browser.")
@click.argument("folder", metavar="[RUN_FOLDER]", type=PathOption(), default=LAST)
@click.option("--html", type=PathOption(may_be_folder=False), help="Write the page as it is now to this file, and end.")
@click.option("--web", is_flag=True, help="Serve a page on this machine instead, for a browser.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of the page; by default any that is free.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve metrics for Prometheus on this machine.")
def watch(folder: Path, html: Path | None, web: bool, port: int, metrics_port: int | None) -> None:
    """Show a run while it lasts: how far it is, what each process does and waits for, and what happened.

    RUN_FOLDER is the run folder of the job, by default runs/last. The terminal's table ends with the run, whose
    processes it does not touch; Ctrl-C ends it before. A run that has ended is shown as it ended, and one that was
    killed as far as it came.

    --web prints the address of a page that only this machine can open, as it has a secret in it; from another one:
    ssh -L PORT:localhost:PORT HOST, with --port PORT. The page stays until Ctrl-C, also when the run has ended.
    --metrics-port needs `pip install prometheus_client`.
    """
    from ..watching.run_follower import RunFollower

    if sum((html is not None, web, metrics_port is not None)) > 1:
        raise click.UsageError("--html, --web and --metrics-port are one of three")
    follower = RunFollower(folder)
    if html is not None:
        _write_page(follower, folder, html)
        return
    try:
        if metrics_port is not None:
            from ..watching.prometheus import serve_metrics

            serve_metrics(follower, metrics_port, tell=click.echo)
        elif web:
            from ..watching.watch_server import serve_page

            serve_page(follower, folder, port, tell=click.echo)
        else:
            from ..watching.watch_terminal import watch_in_terminal

            watch_in_terminal(follower)
    except KeyboardInterrupt:
        if follower.is_running:
            click.echo("the run goes on without you", err=True)


def _write_page(follower: "RunFollower", folder: Path, path: Path) -> None:
    """Write the page of a run as it is now."""
    from ..output_file import PAGE, check_output, write_output
    from ..watching.watch_page import render_snapshot

    check_output(path, PAGE)
    follower.update()
    write_output(path, render_snapshot(follower, folder), PAGE)
    click.echo(f"written to {path}")
