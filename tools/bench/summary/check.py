"""`cutset bench check`: measures the ratios that are kept in a file, and says which of them fell."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ..bench_table import BenchTable
from ..peer_comparison import PeerComparison
from .benchmark import Benchmark, BenchmarkOptions, Tell
from .conditions import Conditions
from .kept_ratios import (
    KeptBenchmark,
    KeptRatios,
    RatioChange,
    collect_ratios,
    find_changes,
    read_kept,
    tabulate_changes,
    write_kept,
)
from .measure_apart import Measured, measure_apart

PROCESSES = 3  # that measure each benchmark: two of them differ by more than the rounds of one
Measure = Callable[[str, BenchmarkOptions], Measured]


def keep_ratios(
    path: Path, benchmarks: Sequence[Benchmark], conditions: Conditions, *, tell: Tell, measure: Measure = measure_apart
) -> list[str]:
    """Measure the ratios of benchmarks and write them to the file, in which those of others stay.

    Returns the benchmarks that could not be measured, with the reason.
    """
    kept, troubles = dict(read_kept(path).benchmarks) if path.exists() else {}, []
    for benchmark in benchmarks:
        ratios, trouble = _measure_ratios(benchmark, tell, measure)
        if trouble:
            troubles.append(f"{benchmark.name}: {trouble}")
            continue
        date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        kept[benchmark.name] = KeptBenchmark(conditions, date, ratios)
        write_kept(path, KeptRatios(kept))
    return troubles


def check_ratios(
    kept: KeptRatios,
    benchmarks: Sequence[Benchmark],
    conditions: Conditions,
    *,
    tell: Tell,
    measure: Measure = measure_apart,
) -> BenchTable[RatioChange]:
    """Measure the ratios of benchmarks beside the kept ones. What fell is measured once more, and is to fall twice.

    Benchmarks without kept ratios are notes.
    """
    changes = list[RatioChange]()
    notes = [f"{one.name} has no kept ratios." for one in benchmarks if one.name not in kept.benchmarks]
    for benchmark in (one for one in benchmarks if one.name in kept.benchmarks):
        found = kept.benchmarks[benchmark.name]
        if not found.conditions.is_same_machine(conditions):
            notes.append(f"{benchmark.name} was kept on another machine: {found.conditions.describe_machine()}.")
        now, trouble = _measure_ratios(benchmark, tell, measure)
        first = find_changes(found.ratios, now)
        if any(one.fell for one in first):
            tell(f"{benchmark.name}: {sum(one.fell for one in first)} ratios fell; once more")
            again, trouble = _measure_ratios(benchmark, tell, measure)
            second = find_changes(found.ratios, again)
            first = [one if not one.fell else other for one, other in zip(first, second, strict=True)]
        changes += first
        notes += [f"{benchmark.name}: {trouble}."] if trouble else []
    return tabulate_changes(changes, notes=notes)


def _measure_ratios(benchmark: Benchmark, tell: Tell, measure: Measure) -> tuple[dict[str, tuple[float, ...]], str]:
    """Return the ratios of a benchmark by row, and what hindered a process that measured."""
    runs = list[Sequence[PeerComparison]]()
    for number in range(PROCESSES):
        tell(f"{benchmark.name}: {number + 1} of {PROCESSES}")
        measured = measure(benchmark.name, BenchmarkOptions(short=True))
        if measured.trouble:
            return {}, measured.trouble
        runs.append(measured.comparisons)
    return collect_ratios(benchmark.name, runs), ""


def list_kept(benchmarks: Sequence[Benchmark]) -> list[Benchmark]:
    """Return those of the benchmarks whose ratios are kept."""
    return [benchmark for benchmark in benchmarks if benchmark.kept]
