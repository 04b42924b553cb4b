"""The command `cutset manifest`: what `--on k8s` applies, to read it or to apply it by hand."""

from pathlib import Path

import click

from ..path_option import PathOption


@click.command("manifest", short_help="Print the manifests of a run for Kubernetes.")
@click.argument("values", type=PathOption(), metavar="VALUES.TOML")
@click.option("--machines", type=click.IntRange(1), default=2, help="How many pods.")
def manifest(values: Path, machines: int) -> None:
    """Print the manifests for Kubernetes of a run: a headless service and an indexed job of pods that wait.

    `cutset train TASK --on k8s:VALUES.TOML` creates the same under a name of its own, starts an agent in each pod, and
    deletes them at the end.
    """
    from ...runtime.engines.kubernetes import format_manifests, make_manifests, read_values

    click.echo(format_manifests(make_manifests(read_values(values), machines)), nl=False)
