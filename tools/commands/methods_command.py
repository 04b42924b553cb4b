"""The command `cutset methods`: lists what --method, --optimizer and --compress accept."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import click
import msgspec

WHEN = "When: "  # begins the paragraph of a docstring that says so


@click.command("methods", short_help="List methods, optimizers and compressions.")
def methods_command() -> None:
    """List methods, optimizers and compressions, with their options and defaults."""
    from ...ps.methods.registry import METHODS
    from ...ps.optimizers.registry import OPTIMIZERS
    from ...ps.optimizers.schedule import SCHEDULES
    from ...ps.slices.compression import COMPRESSIONS
    from ..bench.training.reached import COMMAND, ONE_PROCESS, describe_reached

    click.echo("--method NAME[:OPTION=VALUE,...], how replicas train together:\n")
    click.echo(_format_kinds(METHODS, describe_reached))
    alone = ", ".join(f"{percent:.1f} % on {task}" for task, percent in ONE_PROCESS.items())
    click.echo(f"\n  What a method reaches with two replicas and its defaults alone is from `{COMMAND}`;")
    click.echo(f"  one process reaches {alone}.")
    click.echo("\n--optimizer NAME[/tau][:OPTION=VALUE,...], how a gradient changes the parameters (--lr is its rate,")
    click.echo("which /tau divides by the staleness of each push):\n")
    click.echo(_format_kinds(OPTIMIZERS))
    click.echo("\n--lr-schedule NAME[:OPTION=VALUE,...], how the rate changes; options are fractions of the run:\n")
    click.echo(_format_kinds(SCHEDULES))
    click.echo("\n--compress NAME[:OPTION=VALUE,...], how pushes are compressed:\n")
    click.echo(_format_kinds(COMPRESSIONS))


def _first_line_of_class(kind: type[Any]) -> str:
    """Return the first line of the docstring of a method, an optimizer or a compression."""
    return (kind.__doc__ or "").strip().partition("\n")[0]


def when_it_pays(kind: type[Any]) -> str:
    """Return what a docstring says after "When: ", the case in which a method pays; "" where it says nothing."""
    paragraphs = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    return next((" ".join(one.removeprefix(WHEN).split()) for one in paragraphs if one.startswith(WHEN)), "")


def list_options(kind: type[Any]) -> dict[str, Any]:
    """Return the options of a method, an optimizer or the like, with their defaults; "VALUE" where there is none."""
    options = {one.name: "VALUE" if one.required else one.default for one in msgspec.structs.fields(kind)}
    if options.get("lr") == "VALUE":
        options["lr"] = kind(lr=1.0).default_lr
    return options


def _format_kinds(kinds: Mapping[str, type[Any]], reached: Callable[[str], str] = lambda name: "") -> str:
    """Return lines of each: its name and description, when it pays, its options and their defaults, what it reaches."""
    lines = []
    for name, kind in sorted(kinds.items()):
        options = ", ".join(f"{name}={default}" for name, default in list_options(kind).items())
        lines.append(f"  {name:18} {_first_line_of_class(kind)}")
        if when := when_it_pays(kind):
            lines.append(f"  {'':18} when: {when}")
        if options:
            lines.append(f"  {'':18} {options}")
        if reached(name):
            lines.append(f"  {'':18} reaches: {reached(name)}")
    return "\n".join(lines)
