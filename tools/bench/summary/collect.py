"""Measures benchmarks one after the other; each result is kept in a folder, where a stopped run finds it again."""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ....errors import UsageError
from ...output_file import MEASURED, MEASURED_MARK, check_output, write_output
from ..peer_comparison import PeerComparison
from .benchmark import Benchmark, BenchmarkOptions, Tell
from .conditions import Conditions
from .measure_apart import Measured, measure_apart

Measure = Callable[[str, BenchmarkOptions], Measured]


class BenchmarkResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a benchmark. options: those that it uses; date: when it ended; seconds: that it took.

    trouble: why there is no comparison.
    """

    benchmark: str = msgspec.field(name=MEASURED_MARK)
    conditions: Conditions
    options: dict[str, str]
    date: str
    seconds: float
    comparisons: tuple[PeerComparison, ...] = ()
    trouble: str = ""


def collect(
    benchmarks: Sequence[Benchmark],
    options: BenchmarkOptions,
    conditions: Conditions,
    folder: Path,
    *,
    tell: Tell,
    measure: Measure = measure_apart,
) -> Iterator[BenchmarkResult]:
    """Yield the result of each benchmark in turn: that of the folder if its conditions are the same, or a new one.

    What was in trouble is measured again.
    """
    for benchmark in benchmarks:
        path = folder / f"{benchmark.name}.json"
        used = {name: str(getattr(options, name)) for name in benchmark.needs + benchmark.uses if options.has(name)}
        found = _read_result(path)
        if found is not None and not found.trouble and (found.conditions, found.options) == (conditions, used):
            tell(f"{benchmark.name}: measured at {found.date}")
            yield found
            continue
        tell(f"{benchmark.name}: {benchmark.lead}")
        begin = time.monotonic()
        measured = _measure(benchmark, options, measure)
        date, seconds = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), time.monotonic() - begin
        rows, trouble = measured.comparisons, measured.trouble
        result = BenchmarkResult(benchmark.name, conditions, used, date, seconds, rows, trouble)
        tell(f"{benchmark.name}: {trouble or f'{len(rows)} rows in {seconds:.0f} s'}")
        write_output(path, msgspec.json.format(msgspec.json.encode(result), indent=1).decode(), MEASURED)
        yield result


def _measure(benchmark: Benchmark, options: BenchmarkOptions, measure: Measure) -> Measured:
    missing = [name for name in benchmark.needs if not options.has(name)]
    if missing:
        return Measured(trouble=f"not measured without --{missing[0]}")
    return measure(benchmark.name, options)


def _read_result(path: Path) -> BenchmarkResult | None:
    """Return a result of an earlier run; None where there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=BenchmarkResult)
    except (OSError, msgspec.MsgspecError):
        return None


def make_folder(folder: Path, benchmarks: Sequence[Benchmark]) -> Path:
    """Make a folder for results; UsageError (E222, E232) where it cannot be, or has other files of these names."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("E222", f"cannot make folder {folder}: {error.strerror}", fix="name another folder") from error
    for benchmark in benchmarks:
        check_output(folder / f"{benchmark.name}.json", MEASURED)
    return folder
