"""The command `cutset doctor`: whether machines are ready for a run."""

import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from ..config.engine_name import FORMS, check_ports
from .output import json_option, print_json

if TYPE_CHECKING:
    from ..doctor.examine import Examination, HostReport

USAGE, NETWORK = 2, 5
_COLUMNS = ("machine", "ssh", "listens on", "cores", "memory", "free on disk", "clock", "state")


@click.command("doctor")
@click.argument("task", required=False)
@click.option("--on", "engine", required=True, metavar="ENGINE", help=f"Which machines: {FORMS}.")
@click.option("--machines", type=click.IntRange(1), default=1, help="How many, where the engine makes them.")
@click.option("--ports", metavar="FIRST-LAST", default="", help="At which roles are to listen.")
@click.option("--roles", type=click.IntRange(1, 256), default=2, help="Processes that a run has on each, at most.")
@json_option
def doctor(task: str | None, engine: str, machines: int, ports: str, roles: int, as_json: bool) -> None:
    """Check that machines are ready for a run, before one depends on them.

    On every machine of the engine an agent is started, as for a run: versions of Python, torch and cutset, memory,
    disk and clock are compared, and every way between any two machines is tried, encrypted as in a run.
    So many roles listen on each as a run may have there: a range of ports must have room for them and the launcher.
    A TASK is loaded on each, as its workers would; data are not read.
    Everything that is wrong is named, with its fix. Nothing is left on any machine.

    Exit codes: 0 if all is well, 2 for machines, 5 for the network between them.
    """
    from ..doctor.examine import examine
    from ..hosts.engine import make_engine, pass_on_notices, serve_if_member
    from ..task.load_task import TaskSpec

    if serve_if_member(engine):
        return
    if ports:
        check_ports("--ports", ports)
    spec = None if task is None else TaskSpec(task)
    chosen = make_engine(engine)
    with pass_on_notices(chosen, partial(click.echo, err=True)):
        examination = examine(chosen, wanted=machines, ports=ports, roles=roles, task=spec)
    if as_json:
        print_json(examination.to_dict(), indent=1)
    else:
        _print(examination)
    if examination.failures:
        sys.exit(NETWORK if len(examination.links) == len(examination.failures) else USAGE)


def _print(examination: "Examination") -> None:
    from ..report.console import make_console, print_columns, print_error

    console = make_console()
    print_columns(console, _COLUMNS, [_format(report) for report in examination.hosts], right=[False] * len(_COLUMNS))
    for failure in examination.failures:
        print_error(failure)
    if not examination.failures:
        count = len(examination.hosts)
        click.echo("ready" if count == 1 else f"ready: {count} machines, and every way between them")


def _format(report: "HostReport") -> tuple[str, ...]:
    from ..units import format_bytes

    host = report.host
    codes = ", ".join(failure.code for failure in report.failures)
    if host is None:
        return report.name, report.login, "", "", "", "", "", codes
    memory, free = format_bytes(host["memory_bytes"]), format_bytes(host["free_bytes"])
    clock = f"{host['clock_ahead_s']:+.1f} s"
    return report.name, report.login, host["address"], str(host["cores"]), memory, free, clock, codes or "ready"
