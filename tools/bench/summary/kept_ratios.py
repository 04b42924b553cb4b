"""Ratios kept in a file of the repository, and which of those measured now fell by more than the noise.

The noise of a ratio is known from its rounds, which several processes have made one after the other, then and now.
"""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ....errors import BadInput
from ...output_file import MEASURED, MEASURED_MARK, write_output
from ...strict_json import to_json
from ...units import format_percent
from ..bench_table import BenchTable, Column
from ..peer_comparison import GROWING, PeerComparison
from .conditions import Conditions

NOISES = 3.0  # standard deviations, of the difference of two medians
MIN_FALL = 0.1  # of a ratio; less is never named, as medians of different hours differ by as much
MEDIAN = 1.253  # the deviation of a median of n rounds, in deviations of one round over the root of n
_LIST = re.compile(r"\[[^\[\]{}]*\]")  # of numbers, which stands in one line
QUARTILES = 1.349  # what lies between the quartiles of a normal distribution, in standard deviations


class KeptBenchmark(msgspec.Struct, frozen=True):
    """The ratios of a benchmark by row, a number a round, and with what they were measured."""

    conditions: Conditions
    date: str
    ratios: dict[str, tuple[float, ...]]


class KeptRatios(msgspec.Struct, frozen=True):
    """The content of the file."""

    benchmarks: dict[str, KeptBenchmark]
    kind: str = msgspec.field(name=MEASURED_MARK, default="ratios")


@dataclass(frozen=True)
class RatioChange:
    """A ratio then and now. Larger is better: that of seconds is its inverse. now: empty where it is missing."""

    row: str
    kept: tuple[float, ...]
    now: tuple[float, ...]

    @property
    def kept_ratio(self) -> float:
        """The median that was kept."""
        return statistics.median(self.kept)

    @property
    def ratio(self) -> float | None:
        """The median now; None where it is missing."""
        return statistics.median(self.now) if self.now else None

    @property
    def change(self) -> float | None:
        """By what part it rose, or fell if negative."""
        return None if self.ratio is None else self.ratio / self.kept_ratio - 1

    @property
    def noise(self) -> float:
        """By what part it may fall without being named."""
        deviations = [_compute_deviation(series) for series in (self.kept, self.now) if series]
        return max(MIN_FALL, 1 - math.exp(-NOISES * math.hypot(*deviations)))

    @property
    def fell(self) -> bool:
        """Whether it fell by more than the noise, or is missing."""
        return self.change is None or self.change < -self.noise


def _compute_deviation(series: Sequence[float]) -> float:
    """Return the relative deviation of the median of a series, by its quartiles, which no single round can change."""
    if len(series) < 2:
        return 0.0
    low, _, high = statistics.quantiles([math.log(value) for value in series], n=4, method="inclusive")
    return MEDIAN * (high - low) / QUARTILES / math.sqrt(len(series))


def collect_ratios(benchmark: str, runs: Sequence[Sequence[PeerComparison]]) -> dict[str, tuple[float, ...]]:
    """Return the ratios of a benchmark by row, larger for better, of all rounds of several runs."""
    ratios = dict[str, tuple[float, ...]]()
    for row in (row for run in runs for row in run if row.peer_values):
        key = f"{benchmark}: {row.name}, of {row.peer}"
        better = (ratio if row.unit in GROWING else 1 / ratio for ratio in row.ratios)
        ratios[key] = ratios.get(key, ()) + tuple(float(f"{ratio:.4g}") for ratio in better)
    return ratios


def find_changes(kept: Mapping[str, tuple[float, ...]], now: Mapping[str, tuple[float, ...]]) -> list[RatioChange]:
    """Return every kept ratio beside that of now."""
    return [RatioChange(row, ratios, now.get(row, ())) for row, ratios in kept.items()]


COLUMNS: tuple[Column[RatioChange], ...] = (
    Column("ratio, larger is better", "row", align="left"),
    Column("kept", "kept_ratio", "{:.3g}".format),
    Column("now", "ratio", "{:.3g}".format),
    Column("change", "change", lambda change: f"{100 * change:+.0f} %"),
    Column("noise", "noise", lambda noise: f"± {format_percent(noise)}"),
    Column("fell", "fell", lambda fell: "FELL" if fell else "no"),
    Column("", "kept_rounds", value=lambda row: row.kept),
    Column("", "now_rounds", value=lambda row: row.now),
)


def tabulate_changes(changes: Sequence[RatioChange], *, notes: Sequence[str] = ()) -> BenchTable[RatioChange]:
    """Return the table of the ratios, those that fell first; the last note says which these are."""
    ordered = sorted(changes, key=lambda one: (not one.fell, -1.0 if one.change is None else one.change))
    fallen = [one.row for one in ordered if one.fell]
    verdict = f"Fell by more than the noise: {'; '.join(fallen)}." if fallen else "Nothing fell by more than the noise."
    verdict = verdict if ordered else "Nothing was compared."
    return BenchTable(COLUMNS, ordered, notes=(*notes, verdict), name="ratios")


def read_kept(path: Path) -> KeptRatios:
    """Read the file; BadInput (E378) where it is none of kept ratios."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=KeptRatios)
    except (OSError, msgspec.MsgspecError) as error:
        facts, fix = f"{path} has no kept ratios: {error}", f"cutset bench check {path} --keep"
        raise BadInput("E378", facts, fix=fix) from error


def write_kept(path: Path, kept: KeptRatios) -> None:
    """Write the file, a line a ratio; UsageError (E232) where something else is there."""
    plain = msgspec.to_builtins(kept)
    text = to_json({MEASURED_MARK: plain.pop(MEASURED_MARK), **plain}, indent=1)
    write_output(path, _LIST.sub(lambda found: " ".join(found[0].split()), text) + "\n", MEASURED)
