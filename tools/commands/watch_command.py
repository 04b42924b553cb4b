"""The command `cutset watch`: a run while it lasts, or as it ended, in the terminal or in a browser."""

from pathlib import Path

import click

from ..path_option import PathOption
from ..run_folder import LAST


@click.command("watch")
@click.argument("folder", metavar="[RUN_FOLDER]", type=PathOption(), default=LAST)
@click.option("--web", is_flag=True, help="Serve a page on this machine instead, for a browser.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of the page; by default any that is free.")
def watch(folder: Path, web: bool, port: int) -> None:
    """Show a run while it lasts: how far it is, what each process does and waits for, and what happened.

    RUN_FOLDER is the run folder of the job, by default runs/last. It ends with the run, whose processes it does not
    touch; Ctrl-C ends it before. A run that has ended is shown as it ended.

    --web prints the address of a page that only this machine can open, as it has a secret in it; from another one:
    ssh -L PORT:localhost:PORT HOST, with --port PORT.
    """
    from ..watching.run_follower import RunFollower

    follower = RunFollower(folder)
    try:
        if web:
            from ..watching.watch_server import serve_page

            serve_page(follower, folder, port, tell=click.echo)
        else:
            from ..watching.watch_terminal import watch_in_terminal

            watch_in_terminal(follower)
    except KeyboardInterrupt:
        click.echo("the run goes on without you" if follower.is_running else "", err=True)
