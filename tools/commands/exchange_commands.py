"""The commands `cutset export` and `cutset import`: weights and optimizer state in the forms of others."""

import re
from pathlib import Path

import click

from ...errors import UsageError
from ..path_option import PathOption
from ..run_folder import LAST
from .config_options import GroupedCommand

_SIZE = re.compile(r"(\d+)(MB|GB)")


@click.command("export", short_help="Write a trained model in the forms of torch or Hugging Face.", cls=GroupedCommand)
@click.argument("run", type=PathOption(), default=LAST)
@click.option("--to", "form", type=click.Choice(["torch", "dcp", "hf"]), required=True, help="The form to write.")
@click.option("--out", type=PathOption(), required=True, help="A file for torch, a folder for dcp and hf; a new one.")
@click.option(
    "--weights",
    type=click.Choice(["last", "best", "ema"]),
    default="last",
    show_default=True,
    help="Those of the end, with the optimizer's state; the best of --monitor; the average of --ema.",
)
@click.option("--part", default="5GB", show_default=True, metavar="SIZE", help="With hf: size of a file at most.")
def export(run: Path, form: str, out: Path, weights: str, part: str) -> None:
    """Write the model of RUN as torch, torch.distributed.checkpoint or Hugging Face's Hub has it.

    By default RUN is runs/last. Of a safetensors file in its place there are weights alone.
    """
    from ..exchange.forms import write_form
    from ..exchange.trained_model import read_trained

    size = _SIZE.fullmatch(part)
    if size is None or not int(size[1]):
        raise UsageError("E220", f"--part {part}; it must be a size", fix="--part 500MB, or 5GB")
    model = read_trained(run, weights)
    write_form(form, out, model, part_bytes=int(size[1]) * (10**9 if size[2] == "GB" else 10**6))
    what = ""
    if model.optimizer and form != "hf":
        what = f", state of {model.optimizer}"
        what = what if model.groups else f", without the{what[1:]}: no optimizer of torch is the same"
    click.echo(f"{out}: {len(model.weights)} tensors{what}", err=True)


@click.command("import", short_help="Read weights and optimizer state in these forms.", cls=GroupedCommand)
@click.argument("source", type=PathOption())
@click.option("--out", type=PathOption(), required=True, help="weights.safetensors for --init, or a run for --resume.")
@click.option("--trust", is_flag=True, help="Read a distributed checkpoint, whose metadata torch unpickles.")
@click.option("--optimizer", default="", metavar="NAME", help="Whose state it is, where that is not clear.")
@click.option("--method", default="downpour", show_default=True, help="By which the run goes on.")
@click.option("--seed", default=0, show_default=True, help="Of the run that goes on.")
@click.option(
    "--samples", default=0, show_default=True, help="Trained on so far, which the run that goes on leaves out."
)
def import_(source: Path, out: Path, trust: bool, optimizer: str, method: str, seed: int, samples: int) -> None:
    """Read SOURCE: a file of torch.save, a distributed checkpoint, or safetensors in the layout of the Hub.

    Written as NAME.safetensors it is for `cutset train --init`; as a folder, with the optimizer's state, for --resume.
    """
    from ..config.named_choices import method_of
    from ..exchange.forms import read_form, save_weights
    from ..exchange.trained_model import TORCH_NAMES, write_checkpoint

    model = read_form(source, trust=trust)
    if out.suffix == ".safetensors":
        save_weights(out, model)
        click.echo(f"{out}: {len(model.weights)} tensors; cutset train ... --init {out}", err=True)
        return
    model.optimizer = optimizer or model.optimizer
    if not model.state or model.optimizer not in TORCH_NAMES:
        facts = f"{source} has no state of an optimizer that is known here"
        fix = f"--out weights.safetensors, or --optimizer {', '.join(TORCH_NAMES)}"
        raise UsageError("E239", facts, fix=fix)
    write_checkpoint(model, out, {"samples": samples, "seed": seed, "method": method_of(method).name, "step": 0})
    click.echo(f"{out}: state of {model.optimizer}; cutset train ... --resume {out}", err=True)
