"""The page of `cutset bench all`, as HTML, as Markdown and as data: a table for each benchmark."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ...output_file import MEASURED, MEASURED_MARK, PAGE, TABLE, TABLE_MARK, check_output, write_output
from ...report.html import render_card, render_facts, render_header, render_notes, render_page
from ...strict_json import to_json
from ...units import format_bytes, format_number, format_seconds
from ..bench_table import BenchTable
from ..peer_comparison import PeerComparison, tabulate
from .benchmark import Benchmark
from .collect import BenchmarkResult
from .conditions import Conditions

NAME = "bench"
KINDS = {"html": PAGE, "md": TABLE, "json": MEASURED}
NOTES = (
    "Ratio: the median over the rounds of what was measured over its peer, which was measured beside it in every "
    "round; where the peer has other rounds, that of the medians.",
    "Spread: half of what lies between the smallest and the largest ratio - without a peer, value - over the median.",
    "Goals are for a machine on which nothing else runs; those in seconds are for two cores of an AMD EPYC.",
)


def check_pages(folder: Path) -> None:
    """Raise UsageError where the folder has files of these names that are others'."""
    for suffix, kind in KINDS.items():
        check_output(folder / f"{NAME}.{suffix}", kind)


def write_pages(folder: Path, benchmarks: Sequence[Benchmark], results: Mapping[str, BenchmarkResult]) -> None:
    """Write the page of what has been measured so far. results: by the name of the benchmark; one at least."""
    shown = [(benchmark, results.get(benchmark.name)) for benchmark in benchmarks]
    conditions = next(iter(results.values())).conditions
    write_output(folder / f"{NAME}.html", _render_html(shown, conditions), PAGE)
    write_output(folder / f"{NAME}.md", f"{TABLE_MARK}\n{_render_markdown(shown, conditions)}", TABLE)
    write_output(folder / f"{NAME}.json", to_json(_collect_data(shown, conditions), indent=1), MEASURED)


Shown = Sequence[tuple[Benchmark, BenchmarkResult | None]]


def describe_goals(results: Sequence[BenchmarkResult]) -> str:
    """Return how many goals are met, and in which benchmarks others are missed."""
    judged = [(result.benchmark, row.met) for result in results for row in result.comparisons if row.met is not None]
    missed = list(dict.fromkeys(name for name, met in judged if not met))
    return f"{sum(met for _, met in judged)} of {len(judged)} goals are met" + (
        f"; not all of: {', '.join(missed)}." if missed else "."
    )


def tabulate_result(benchmark: Benchmark, result: BenchmarkResult | None) -> BenchTable[PeerComparison]:
    """Return the table of a benchmark; without rows, a note says why."""
    rows = () if result is None else result.comparisons
    table = tabulate(rows, title=benchmark.name, name=benchmark.name)
    trouble = "not measured yet" if result is None else result.trouble
    return BenchTable(table.columns, rows, table.title, (trouble,) if trouble else (), table.name)


def _render_html(shown: Shown, conditions: Conditions) -> str:
    results = [result for _, result in shown if result is not None]
    rows = sum(len(result.comparisons) for result in results)
    facts = [
        ("Machine", format_number(conditions.cores, "core"), conditions.cpu),
        ("Memory", format_bytes(conditions.memory_bytes), ""),
        ("Measured", results[-1].date, f"in {format_seconds(sum(result.seconds for result in results))}"),
        ("Versions", f"torch {conditions.versions['torch']}", conditions.describe_versions()),
        ("Rows", str(rows), f"of {format_number(len(results), 'benchmark')}"),
    ]
    body = render_header("Benchmarks", describe_goals(results)) + render_facts(facts)
    for benchmark, result in shown:
        body += render_card(benchmark.name, _describe(benchmark, result), _render_table(benchmark, result))
    body += render_card("How to read this", "", render_notes(NOTES))
    return render_page("cutset: benchmarks", body)


def _render_table(benchmark: Benchmark, result: BenchmarkResult | None) -> str:
    table = tabulate_result(benchmark, result)
    return (
        table.to_html(bad=lambda row: ("met",) if row.met is False else ()) if table.rows else render_notes(table.notes)
    )


def _describe(benchmark: Benchmark, result: BenchmarkResult | None) -> str:
    when = (
        "" if result is None or result.trouble else f" Measured at {result.date}, in {format_seconds(result.seconds)}."
    )
    return f"{benchmark.lead} {benchmark.command}.{when}"


def _render_markdown(shown: Shown, conditions: Conditions) -> str:
    results = [result for _, result in shown if result is not None]
    machine = f"{conditions.describe_machine()}, {format_bytes(conditions.memory_bytes)}"
    parts = ["# Benchmarks\n", f"{describe_goals(results)}\n"]
    parts.append(f"{machine}; {conditions.describe_versions()}; {results[-1].date}.\n")
    for benchmark, result in shown:
        table = tabulate_result(benchmark, result)
        content = table.to_markdown().rstrip() if table.rows else f"- {table.notes[0]}"
        parts.append(f"## {benchmark.name}\n\n{_describe(benchmark, result)}\n\n{content}\n")
    parts.append("\n".join(f"- {note}" for note in NOTES) + "\n")
    return "\n".join(parts)


def _collect_data(shown: Shown, conditions: Conditions) -> dict[str, object]:
    rows = []
    for benchmark, result in shown:
        table = tabulate_result(benchmark, result)
        taken = {} if result is None else {"date": result.date, "seconds": result.seconds, "trouble": result.trouble}
        rows.append(
            {"name": benchmark.name, "command": benchmark.command, **taken, "rows": table.to_dict()[table.name]}
        )
    return {MEASURED_MARK: "all", "conditions": msgspec.to_builtins(conditions), "benchmarks": rows}
