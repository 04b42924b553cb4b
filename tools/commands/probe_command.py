"""The command `cutset probe`: measures this machine, says what it found, and writes cluster.toml."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import json_option

if TYPE_CHECKING:
    from ..probe.measure_machine import Probed


@click.command()
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("cluster.toml"),
    show_default=True,
    help="The cluster file to write.",
)
@click.option(
    "--machines", type=int, default=2, show_default=True, help="Workers on this machine, which share its cores."
)
@click.option("--name", default="machine", show_default=True, help="What the machines are called in the file.")
@json_option
def probe(out: Path, machines: int, name: str, as_json: bool) -> None:
    """Measure this machine and write a cluster file of machines like it, for `cutset plan --cluster`.

    Takes about 20 seconds: what operators of each class run at, what starting one costs, and what a message between two
    workers on this machine costs. Nothing else should be running.
    """
    from ...partition.cluster.cluster_file import save
    from ...errors import UsageError
    from ..probe.measure_machine import probe as measure
    from ..report.probe_report import as_plain, print_probed

    if not out.parent.is_dir():  # said before anything is measured
        raise UsageError("E222", f"cannot write {out}: there is no folder {out.parent}", fix="-o cluster.toml")
    probed = measure(machines, name=name)
    save(probed.cluster, out, note=_note(probed))
    if as_json:
        import json

        click.echo(json.dumps(as_plain(probed), indent=1))
        return
    print_probed(probed)
    click.echo(f"\nwritten to {out}; plan with it: cutset plan TASK --cluster {out}")


def _note(probed: "Probed") -> str:
    from ..report.probe_report import disturbance

    count = f"{probed.workers} workers" if probed.workers > 1 else "one worker"
    warning = f"\n{disturbance(probed)}" if probed.disturbed else ""
    return (
        f"Measured by cutset probe for {count} on one machine of {probed.cores} cores, {probed.threads} threads each.\n"
        f"[network] is the loopback of that machine; for machines of their own, write what their network has.{warning}"
    )
