"""`cutset eval`, the command."""

import json
from pathlib import Path

import click

from .options import json_option, task_options, task_spec
from .output import stdout_kept


@click.command("eval")
@task_options
@click.option(
    "--checkpoint",
    "source",
    type=click.Path(path_type=Path),
    default=Path("runs/last"),
    show_default=True,
    help="A run folder, the checkpoint in it, or a safetensors file with a plain state_dict.",
)
@click.option("--machines", type=click.IntRange(min=1), help="Machines to cut the model over; by default as trained.")
@click.option(
    "--placement", "placement_file", type=click.Path(path_type=Path), help="A placement file, instead of --machines."
)
@click.option("--split", default="test", show_default=True, help="Which samples: test or train.")
@json_option
def evaluate(
    task: str,
    autocast: str | None,
    blocks: tuple[str, ...],
    data: str | None,
    inputs: tuple[str, ...],
    batch: int | None,
    source: Path,
    machines: int | None,
    placement_file: Path | None,
    split: str,
    as_json: bool,
) -> None:
    """Tell how well TASK does with trained weights; batches stream through the machines of a cut model."""
    from ...partition.placement.placement_file import load
    from ..training.evaluate import check_split, evaluate
    from ..task.plan_task import Wanted

    if placement_file is not None and machines is not None:
        raise click.UsageError("give --placement or --machines, not both")
    spec = task_spec(task, data, inputs, batch, blocks, autocast)
    placement = load(placement_file) if placement_file is not None else None
    with stdout_kept(as_json):
        found = evaluate(spec, source, wanted=Wanted(machines), placement=placement, split=check_split(split))
    if as_json:
        click.echo(json.dumps(found))
        return
    over = "one machine" if found["machines"] == 1 else f"{found['machines']} machines ({found['plan']})"
    click.echo(
        f"{found['right']} of {found['samples']} {split} samples right: {100 * found['accuracy']:.2f} %, "
        f"in {found['seconds']:.2f} s on {over}, {found['samples_per_s']:.0f} samples/s"
    )
