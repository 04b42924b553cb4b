"""The command `cutset methods`: what --method, --rule and --compress can be."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import click
import msgspec


@click.command("methods")
def methods_command() -> None:
    """List the methods of training, the rules of shards, the compressions of pushes, and the options of each."""
    from ...ps.slices.compression import COMPRESSIONS
    from ...ps.methods.registry import METHODS
    from ...ps.optimizers.registry import RULES

    click.echo("--method NAME[:OPTION=VALUE,...], how replicas train together:\n")
    click.echo(_listed(METHODS, _paper))
    click.echo("\n--rule NAME[/tau][:OPTION=VALUE,...], how a gradient changes the parameters (--lr is its rate,")
    click.echo("which /tau divides by the staleness of each push):\n")
    click.echo(_listed(RULES, _formula))
    click.echo("\n--compress NAME[:OPTION=VALUE,...], how pushes are made smaller:\n")
    click.echo(_listed(COMPRESSIONS, _formula))


def _paper(kind: type[Any]) -> str:
    """What a method is: the first line of its file."""
    return (sys.modules[kind.__module__].__doc__ or "").partition("\n")[0]


def _formula(kind: type[Any]) -> str:
    """What a rule or a compression is: the first line about it."""
    return (kind.__doc__ or "").strip().partition("\n")[0]


def _listed(kinds: Mapping[str, type[Any]], about: Callable[[type[Any]], str]) -> str:
    """A line for what each is, and one for its options with their defaults."""
    lines = []
    for name, kind in sorted(kinds.items()):
        fields = [f for f in msgspec.structs.fields(kind) if f.name != "lr"]
        options = ", ".join(f"{f.name}={'VALUE' if f.required else f.default}" for f in fields)
        lines.append(f"  {name:18} {about(kind)}")
        if options:
            lines.append(f"  {'':18} {options}")
    return "\n".join(lines)
