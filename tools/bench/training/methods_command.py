"""`cutset bench methods`: all methods of data parallelism beside plain torch, in one table."""

import json
import tempfile
from pathlib import Path

import click

from ....errors import UsageError


@click.command("methods")
@click.option("--data", required=True, help="The MNIST files, as mnist:DIR.")
@click.option("--epochs", type=click.IntRange(min=1), default=5, show_default=True, help="Of the training with tests.")
@click.option(
    "--rounds", type=click.IntRange(min=0), default=3, show_default=True, help="Turns of three epochs, for speed."
)
@click.option("--only", default="", metavar="NAME,...", help="Only these methods, by row or by --method, beside torch.")
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the table (Markdown).")
@click.option("--json", "as_json", is_flag=True, help="Print all as JSON, for programs.")
def methods_bench_command(data: str, epochs: int, rounds: int, only: str, out: Path | None, as_json: bool) -> None:
    """Train the perceptron 784-512-512-10 on MNIST by every method with two replicas, and say what each is good for.

    Beside one process with one thread and with two, torch's DistributedDataParallel on gloo, and torch's Hogwild. The
    rate of each method is fixed and stands in the table, with how it was found below it.
    """
    from .settings import named
    from .methods import contestants, measure
    from .methods_table import as_data, markdown, print_rows

    if out is not None and not out.parent.is_dir():  # said before anything is measured
        raise UsageError("E222", f"cannot write {out}: there is no folder {out.parent}", fix="-o methods.md")
    chosen = named([name.strip() for name in only.split(",") if name.strip()])
    with tempfile.TemporaryDirectory(prefix="cutset-bench-") as folder:
        entries = contestants(data, Path(folder), chosen)
        rows = measure(entries, epochs=epochs, rounds=rounds, tell=lambda said: click.echo(said, err=True))
    if out is not None:
        out.write_text(markdown(rows), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(as_data(rows), indent=1))
    else:
        print_rows(rows)
