"""The command `cutset methods`: what --method and --rule can be."""

from collections.abc import Mapping
from typing import Any

import click
import msgspec


@click.command("methods")
def methods_command() -> None:
    """List the methods of training, the rules of shards, and the options of each."""
    from ..ps.methods import METHODS
    from ..ps.rules import RULES

    click.echo("--method NAME[:OPTION=VALUE,...], how replicas train together:\n")
    click.echo(_listed(METHODS))
    click.echo("\n--rule NAME[:OPTION=VALUE,...], how a gradient changes the parameters (--lr is its rate):\n")
    click.echo(_listed(RULES))


def _listed(kinds: Mapping[str, type[Any]]) -> str:
    """A line for what each is, and one for its options with their defaults."""
    lines = []
    for name, kind in sorted(kinds.items()):
        fields = [f for f in msgspec.structs.fields(kind) if f.default is not msgspec.NODEFAULT]
        options = ", ".join(f"{field.name}={field.default}" for field in fields)
        first = (kind.__doc__ or "").strip().partition("\n")[0]
        lines.append(f"  {name:18} {first}")
        if options:
            lines.append(f"  {'':18} {options}")
    return "\n".join(lines)
