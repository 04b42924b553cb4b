"""The command `cutset probe`: measures this machine, prints the results and writes a cluster file."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

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
@json_option
def probe(out: Path, machines: int, name: str, as_json: bool) -> None:
    """Measure this machine and write a cluster file.

    The file describes machines like this one, for `cutset plan --cluster`. Probing takes about 20 seconds. It measures
    the speed of each class of operators, the cost of starting an operator, and the cost of a message between two
    workers on this machine. Run it on an idle machine.
    """
    from ...partition.cluster.cluster_file import to_toml
    from ..probe.measure_machine import probe as measure
    from ..report.probe_report import print_probed

    check_output(out, CLUSTER)
    probed = measure(machines, name=name)
    write_output(out, to_toml(probed.cluster, note=_note(probed)), CLUSTER)
    if as_json:
        print_json(probed.to_dict(), indent=1)
        return
    print_probed(probed)
    click.echo(f"\nwritten to {out}; plan with it: cutset plan TASK --cluster {out}")


def _note(probed: "ProbeResult") -> str:
    from ..report.probe_report import describe_disturbance

    count = f"{probed.workers} workers" if probed.workers > 1 else "one worker"
    warning = f"\n{describe_disturbance(probed)}" if probed.disturbed else ""
    return (
        f"{CLUSTER_MARK.removeprefix('# ')} for {count} on one machine of {probed.cores} cores, "
        f"{probed.threads} threads each.\n"
        f"[network] is the loopback of that machine; for separate machines, enter what their network has.{warning}"
    )
