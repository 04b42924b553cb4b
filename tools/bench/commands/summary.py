"""`cutset bench all`, all benchmarks on one page, and `cutset bench check`, their ratios beside kept ones."""

from pathlib import Path

import click

from ...path_option import PathOption
from .options import json_option, print_progress


@click.command("all")
@click.option("--data", help="The MNIST files, as mnist:DIR.")
@click.option("--pslite", type=PathOption(), help="A program built with ps-lite, to compare with.")
@click.option("--graphs", type=PathOption(), metavar="DIR", help="Published graphs, to plan.")
@click.option("-o", "--out", type=PathOption(), required=True, metavar="FOLDER", help="The folder of page and results.")
@json_option
@click.argument("names", metavar="[NAME]...", nargs=-1)
def all_command(
    data: str | None, pslite: Path | None, graphs: Path | None, out: Path, as_json: bool, names: tuple[str, ...]
) -> None:
    """Run all benchmarks, or those of these names, and write one page with every row beside its peer and its goal.

    Writes bench.html, bench.md and bench.json to the folder of -o, anew after each benchmark, with a file for each. A
    benchmark that fails, or lacks root or data, is named there, and the others go on. A run that was stopped goes on
    where it was; what was measured with other sources, versions or options, or on another machine, is measured again.
    Takes some hours, and a quiet machine.
    """
    from ..bench_table import show_tables
    from ..summary.benchmark import BenchmarkOptions
    from ..summary.benchmarks import find_benchmarks
    from ..summary.collect import collect, make_folder
    from ..summary.conditions import read_conditions
    from ..summary.page import check_pages, describe_goals, tabulate_result, write_pages

    benchmarks = find_benchmarks(names)
    folder, conditions = make_folder(out, benchmarks), read_conditions()
    check_pages(folder)
    options = BenchmarkOptions(data, None if pslite is None else str(pslite), None if graphs is None else str(graphs))
    results = {}
    for result in collect(benchmarks, options, conditions, folder, tell=print_progress):
        results[result.benchmark] = result
        write_pages(folder, benchmarks, results)
    show_tables(*(tabulate_result(one, results[one.name]) for one in benchmarks), as_json=as_json)
    click.echo(f"{describe_goals(list(results.values()))}\nwritten to {folder}", err=True)


@click.command("check")
@click.argument("kept", type=PathOption(may_be_folder=False))
@click.option("--keep", is_flag=True, help="Measure the ratios and write them to the file instead.")
@json_option
@click.argument("names", metavar="[NAME]...", nargs=-1)
def check_command(kept: Path, keep: bool, as_json: bool, names: tuple[str, ...]) -> None:
    """Measure ratios, and name those that fell below the ones in the file KEPT by more than the noise.

    NAMEs: only these benchmarks. Ratios alone are compared, each with a peer that is measured in the same rounds, since
    machines differ. The noise is known from the rounds of both. What fell is measured once more, and named if it fell
    again. Takes some minutes, and a quiet machine. Exit code 1 if anything fell, or nothing was compared.
    """
    from ..bench_table import show_tables
    from ..summary.benchmarks import find_benchmarks
    from ..summary.check import check_ratios, keep_ratios, list_kept
    from ..summary.conditions import read_conditions
    from ..summary.kept_ratios import read_kept

    benchmarks, conditions = find_benchmarks(names), read_conditions()
    if keep:
        troubles = keep_ratios(kept, list_kept(benchmarks), conditions, tell=print_progress)
        click.echo("\n".join([*troubles, f"written to {kept}"]), err=True)
        raise SystemExit(1 if troubles else 0)
    wanted = benchmarks if names else list_kept(benchmarks)
    table = check_ratios(read_kept(kept), wanted, conditions, tell=print_progress)
    show_tables(table, as_json=as_json)
    if not table.rows or any(one.fell for one in table.rows):
        raise SystemExit(1)
