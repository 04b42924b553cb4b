"""`PeerComparison`: what was measured, beside its peer and its limit: a row of the page of `cutset bench all`."""

import statistics
from collections.abc import Callable, Mapping

import msgspec

from ..units import format_bytes, format_percent, format_seconds
from .bench_table import BenchTable, Column, format_rate

RATE, SECONDS, CPU_SECONDS, BYTES, SAMPLES, ACCURACY = "bytes/s", "s", "CPU s", "bytes", "samples/s", "accuracy"
OBJECTIVE = "objective"  # what a published plan minimises, in the unit of its authors
FORMATS: Mapping[str, Callable[[float], str]] = {
    RATE: format_rate,
    SECONDS: format_seconds,
    CPU_SECONDS: format_seconds,
    BYTES: format_bytes,
    SAMPLES: "{:.0f}/s".format,
    ACCURACY: lambda value: format_percent(value, digits=1),
    OBJECTIVE: "{:.4g}".format,
}
GROWING = {RATE, SAMPLES, ACCURACY}  # of which more is better


class Limit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A goal: the least and the most that the ratio to the peer should be, or the value itself; None: any."""

    least: float | None = None
    most: float | None = None
    of_ratio: bool = True

    def holds(self, value: float) -> bool:
        """Return whether a value is within the limit."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def describe(self, format: Callable[[float], str]) -> str:
        """Return the limit in words."""
        ends = (("at least", self.least), ("at most", self.most))
        return ", ".join(f"{word} {format(end)}" for word, end in ends if end is not None)


class PeerComparison(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was measured, and its peer's values in the same unit, by rounds.

    Rounds of both that are as many were measured side by side: the ratio is the median of theirs. Else it is that of
    the medians.
    """

    name: str
    unit: str
    values: tuple[float, ...]
    peer: str = ""
    peer_values: tuple[float, ...] = ()
    limit: Limit | None = None

    @property
    def value(self) -> float:
        """The median of what was measured."""
        return statistics.median(self.values)

    @property
    def peer_value(self) -> float | None:
        """The median of the peer; None without one."""
        return statistics.median(self.peer_values) if self.peer_values else None

    @property
    def ratios(self) -> tuple[float, ...]:
        """What was measured over the peer's, by rounds; empty without a peer."""
        if len(self.values) == len(self.peer_values):
            return tuple(own / other for own, other in zip(self.values, self.peer_values, strict=True))
        peer = self.peer_value
        return () if peer is None else tuple(value / peer for value in self.values)

    @property
    def ratio(self) -> float | None:
        """The median ratio; None without a peer."""
        return statistics.median(self.ratios) if self.peer_values else None

    @property
    def spread(self) -> float | None:
        """Half of what lies between the smallest and the largest ratio, or value, over the median; None of one."""
        series = self.ratios or self.values
        middle = statistics.median(series)
        return (max(series) - min(series)) / 2 / abs(middle) if len(series) > 1 and middle else None

    @property
    def met(self) -> bool | None:
        """Whether it is within its limit; None without one."""
        if self.limit is None:
            return None
        judged = self.ratio if self.limit.of_ratio else self.value
        return None if judged is None else self.limit.holds(judged)

    def format_value(self, value: float) -> str:
        """Return a value with its unit."""
        return FORMATS[self.unit](value)


def _format_limit(row: PeerComparison) -> str | None:
    if row.limit is None:
        return None
    return row.limit.describe("{:.2f}".format if row.limit.of_ratio else row.format_value)


def _format_peer(row: PeerComparison) -> str | None:
    return None if row.peer_value is None else row.format_value(row.peer_value)


COLUMNS: tuple[Column[PeerComparison], ...] = (
    Column("what", "name", align="left"),
    Column("measured", value=lambda row: row.format_value(row.value)),
    Column("peer", "peer", align="left"),
    Column("peer's", value=_format_peer),
    Column("ratio", "ratio", "{:.2f}".format),
    Column("spread", "spread", lambda spread: f"± {format_percent(spread)}"),
    Column("rounds", "rounds", value=lambda row: len(row.values)),
    Column("goal", value=_format_limit, align="left"),
    Column("met", "met", lambda met: "yes" if met else "no"),
    *(Column[PeerComparison]("", key) for key in ("value", "unit", "peer_value", "values", "peer_values")),
    Column("", "limit", value=lambda row: None if row.limit is None else msgspec.to_builtins(row.limit)),
)


def tabulate(rows: tuple[PeerComparison, ...], *, title: str = "", name: str = "rows") -> BenchTable[PeerComparison]:
    """Return the table of comparisons."""
    return BenchTable(COLUMNS, rows, title=title, name=name)
