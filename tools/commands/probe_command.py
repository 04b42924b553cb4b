"""The command `cutset probe`: measures this machine, prints the results and writes a cluster file."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..config.engine_name import FORMS
from ..output_file import CLUSTER, CLUSTER_MARK, check_output, write_output
from ..path_option import PathOption
from .output import json_option, print_json

if TYPE_CHECKING:
    from ..probe.measure_machine import ProbeResult


@click.command("probe")
@click.option(
    "-o",
    "--out",
    type=PathOption(may_be_folder=False),
    default=Path("cluster.toml"),
    show_default=True,
    help="The cluster file to write.",
)
@click.option(
    "--machines", type=int, default=2, show_default=True, help="Workers to start on this machine; they share its cores."
)
@click.option("--name", default="machine", show_default=True, help="Name of the machines in the file.")
@click.option("--on", "engine", metavar="ENGINE", help=f"Measure other machines instead, and the links: {FORMS}.")
@json_option
def probe(out: Path, machines: int, name: str, engine: str | None, as_json: bool) -> None:
    """Measure this machine, or others, and write a cluster file.

    The file describes machines like this one, for `cutset plan --cluster`. Probing takes about 20 seconds. It measures
    the speed of each class of operators, the cost of starting an operator, and the cost of a message between two
    workers on this machine. Run it on an idle machine. What it finds is kept, too: plans for this machine use it from
    then on, where they would have measured it quickly by themselves.

    With --on every machine of the engine is measured, one after the other, and its link to the next one, as the roles
    of a run have it; addresses are those of the engine's file.
    """
    from ...partition.cluster.cluster_file import to_toml
    from ..probe.first_probe import save, summarise
    from ..probe.measure_machine import probe as measure
    from ..report.probe_report import print_probed

    check_output(out, CLUSTER)
    if engine is not None:
        _probe_engine(engine, out, machines, as_json=as_json)
        return
    probed = measure(machines, name=name)
    save(summarise(probed), partial(click.echo, err=True))
    write_output(out, to_toml(probed.cluster, note=_note(probed)), CLUSTER)
    if as_json:
        print_json(probed.to_dict(), indent=1)
        return
    print_probed(probed)
    click.echo(f"\nwritten to {out}; plan with it: cutset plan TASK --cluster {out}")


def _probe_engine(engine: str, out: Path, wanted: int, *, as_json: bool) -> None:
    """Measure the machines of an engine and write their cluster file."""
    from ...errors import CutsetError
    from ...partition.cluster.cluster_file import to_toml
    from ...partition.cluster.machines import Cluster, Machine
    from ...runtime.hosts.remote_host import RemoteHost
    from ..hosts.engine import find_stated_machines, make_engine, pass_on_notices, serve_if_member
    from ..probe.measure_machine import probe_hosts

    if serve_if_member(engine):
        return
    chosen = make_engine(engine)
    stated = find_stated_machines(engine)
    with pass_on_notices(chosen, partial(click.echo, err=True)), chosen.open(wanted, least=1) as opened:
        for host in opened.values():
            if isinstance(host, CutsetError):
                raise host
        hosts = [host for host in opened.values() if isinstance(host, RemoteHost)]
        cluster = probe_hosts(hosts, stated or Cluster(tuple(Machine(host.name) for host in hosts)))
    text = to_toml(cluster, note=f"{CLUSTER_MARK.removeprefix('# ')} for {len(cluster)} machines, by --on {engine}")
    write_output(out, text, CLUSTER)
    if as_json:
        print_json({"cluster": text}, indent=1)
        return
    click.echo(text)
    click.echo(f"written to {out}; train on them: cutset train TASK --on ssh:{out}" if stated else f"written to {out}")


def _note(probed: "ProbeResult") -> str:
    from ..report.probe_report import describe_disturbance

    count = f"{probed.workers} workers" if probed.workers > 1 else "one worker"
    warning = f"\n{describe_disturbance(probed)}" if probed.disturbed else ""
    return (
        f"{CLUSTER_MARK.removeprefix('# ')} for {count} on one machine of {probed.cores} cores, "
        f"{probed.threads} threads each.\n"
        f"[network] is the loopback of that machine; for separate machines, enter what their network has.{warning}"
    )
