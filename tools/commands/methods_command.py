"""The command `cutset methods`: lists what --method, --optimizer and --compress accept."""

import inspect
from collections.abc import Mapping
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

    click.echo("--method NAME[:OPTION=VALUE,...], how replicas train together:\n")
    click.echo(_format_kinds(METHODS))
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


def _format_kinds(kinds: Mapping[str, type[Any]]) -> str:
    """Return lines of each: its name and description, when it pays, its options and their defaults."""
    lines = []
    for name, kind in sorted(kinds.items()):
        fields = [field for field in msgspec.structs.fields(kind) if field.name != "lr"]
        options = ", ".join(f"{field.name}={'VALUE' if field.required else field.default}" for field in fields)
        lines.append(f"  {name:18} {_first_line_of_class(kind)}")
        if when := when_it_pays(kind):
            lines.append(f"  {'':18} when: {when}")
        if options:
            lines.append(f"  {'':18} {options}")
    return "\n".join(lines)
