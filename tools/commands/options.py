"""The options that several commands of `cutset` share: of the task, of the plan that is wanted, of training."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ..task.load_task import TaskSpec

F = TypeVar("F", bound=Callable[..., Any])


def task_options(command: F) -> F:
    """TASK and the options that say what it is made of."""
    for option in (
        click.option("--batch", type=click.IntRange(min=1), help="Samples of a step; by default the task's own."),
        click.option(
            "--input",
            "inputs",
            multiple=True,
            metavar="SHAPE",
            help="For a bare module: 32x3x224x224, or 32x128:int64.",
        ),
        click.option(
            "--data",
            metavar="KIND:PATH",
            help="Data on disk, for tasks that need it: mnist:DIR, libsvm:FILE or text:FILE.",
        ),
        click.option(
            "--blocks",
            multiple=True,
            metavar="GLOB",
            help="Modules that stay whole and are not traced, so that they may branch on data: 'encoder.layers.*'.",
        ),
        click.option(
            "--autocast",
            type=click.Choice(["bfloat16"]),
            help="Compute products in this dtype, as torch.autocast does; parameters and gradients stay float32.",
        ),
        click.argument("task"),
    ):
        command = option(command)
    return command


def task_spec(
    task: str,
    data: str | None,
    inputs: tuple[str, ...],
    batch: int | None,
    blocks: tuple[str, ...] = (),
    autocast: str | None = None,
) -> "TaskSpec":
    """What `task_options` say."""
    from ..task.load_task import TaskSpec

    return TaskSpec(task, data, inputs, batch, blocks, autocast or "")


json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, for programs.")
seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Of everything random."
)


def plan_options(command: F) -> F:
    """What plan is wanted."""
    for option in (
        click.option(
            "--only",
            default="",
            metavar="KIND",
            help="Choose among plans of this kind: mesh, metis, slices, stages, tiles.",
        ),
        click.option(
            "--micro-batches",
            type=int,
            default=1,
            show_default=True,
            help="Parts of a batch that follow each other through the machines; 1 is lock-step.",
        ),
        click.option(
            "--pin",
            "pins",
            multiple=True,
            metavar="GLOB=MACHINE",
            help="Keep modules, operators or parameters on a machine: --pin 'encoder.*=0'.",
        ),
        click.option(
            "--objective",
            default="time",
            show_default=True,
            help="What is to be least: time, bytes or memory (of the fullest machine).",
        ),
        click.option(
            "--cluster",
            type=click.Path(dir_okay=False, path_type=Path),
            help="The machines and links, as `cutset probe` writes them; by default alike, on gigabit Ethernet.",
        ),
        click.option("--max-machines", "most", type=int, help="Machines to choose from: as many as pay are used."),
    ):
        command = option(command)
    return command


def training_options(command: F) -> F:
    """How to train."""
    for option in (
        click.option("--target", type=click.FloatRange(0, 1), help="Test accuracy to report the time to, as 0.95."),
        click.option("--baseline/--no-baseline", default=True, help="Also train in one process, to compare."),
        click.option(
            "--epochs",
            type=int,
            default=1,
            show_default=True,
            help="Passes over the training samples, all replicas together.",
        ),
        click.option("--warm-start", type=int, help="Downpour: pushes that replica 0 makes alone first."),
        click.option(
            "--overlap/--no-overlap",
            default=None,
            help="Downpour: fetch one step ahead, which hides a slow network, at the price of staler parameters.",
        ),
        click.option("--push", type=int, help="Downpour: steps between two pushes (n_push); 1 by default."),
        click.option("--fetch", type=int, help="Downpour: steps between two fetches (n_fetch); 1 by default."),
        click.option(
            "--clip-norm",
            type=click.FloatRange(min=0),
            default=0.0,
            show_default=True,
            help="Scale the gradients of a step so that their norm, over all machines, is at most this; 0 does not.",
        ),
        click.option(
            "--schedule",
            type=click.Choice(["dataflow", "gpipe", "1f1b"]),
            default="dataflow",
            show_default=True,
            help="Order of the micro-batches on each machine: what is ready; all forward first, which holds the "
            "activations of all at once (a plan counts on as many as there are machines); or in turn.",
        ),
        click.option("--lr", type=float, default=0.02, show_default=True, help="Learning rate of the rule."),
        click.option(
            "--rule",
            default="adagrad",
            show_default=True,
            metavar="NAME[/tau][:OPTION=VALUE,...]",
            help="How a gradient changes the parameters; `cutset methods` lists them.",
        ),
        click.option(
            "--on-divergence",
            type=click.Choice(["stop", "damp"]),
            default="stop",
            show_default=True,
            help="When values cease to be finite: stop, or begin once more with the rate divided by the staleness.",
        ),
        click.option(
            "--compress",
            metavar="NAME[:OPTION=VALUE,...]",
            help="Push gradients in fewer bytes: bf16, int8, threshold:tau=0.001 or topk:share=0.01.",
        ),
        click.option(
            "--method",
            default="downpour",
            show_default=True,
            metavar="NAME[:OPTION=VALUE,...]",
            help="How replicas train together; `cutset methods` lists them.",
        ),
        click.option(
            "--shards",
            type=int,
            help="Parameter server shards; by default as many as machines of a replica, so that none holds the whole.",
        ),
        click.option(
            "--resume",
            type=click.Path(path_type=Path),
            metavar="RUN",
            help="Go on from the last checkpoint of a run folder, with the same or other machines, replicas, shards.",
        ),
        click.option(
            "--keep",
            type=click.IntRange(min=1),
            default=3,
            show_default=True,
            help="How many of the checkpoints that are written while training stay.",
        ),
        click.option(
            "--checkpoint-every",
            default="0",
            show_default=True,
            metavar="STEPS|TIME",
            help="Write a checkpoint after so many steps of each replica, or about every 30s, 5min or 2h of training; "
            "0 for none but the last. It has what the shards hold: of averaging, diloco and easgd neither what each "
            "replica's own rule remembers nor where it is, and not what compression has yet to push.",
        ),
        click.option(
            "--init",
            type=click.Path(path_type=Path),
            metavar="FILE|RUN",
            help="Begin with the weights of a safetensors file, a plain state_dict, or of the last checkpoint of a run "
            "folder, whatever made it, instead of drawing them.",
        ),
        click.option(
            "--restarts",
            type=click.IntRange(min=0),
            default=3,
            show_default=True,
            help="Times that a replica or a shard is started again when it dies, stops or loses a link.",
        ),
        click.option("--replicas", type=int, default=1, show_default=True, help="Copies of the cut model."),
    ):
        command = option(command)
    return command
