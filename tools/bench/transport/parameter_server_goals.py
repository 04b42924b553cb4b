"""What is asked of the parameter servers' speed, and the table of `cutset bench ps`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...report.console import make_console, print_columns
from .parameter_server import BOTH_WAYS, ONE_WAY, PULL, PUSH, PUSH_PULL, WAYS, PsRow
from .transports import PLAIN, RAW, SHARED

SLOWER_MOST = 1.2  # Adagrad's seconds, of SGD's
GOALS = ((PLAIN, PUSH, 0.8), (PLAIN, PULL, 0.8), (PLAIN, PUSH_PULL, 0.9), (SHARED, PUSH_PULL, 1.8))
Key = tuple[str, str, int, str]


@dataclass(frozen=True)
class Goal:
    """ratios: one for each rule and number of shards; least: that each of them should be."""

    text: str
    least: float
    ratios: tuple[float, ...]

    @property
    def met(self) -> bool:
        """Whether all are."""
        return min(self.ratios) >= self.least


def goals(rows: Sequence[PsRow]) -> list[Goal]:
    """As far as what they need was measured."""
    rates = _rates(rows)
    found = [
        Goal(f"{way}, {what}, of {RAW} {_beside(what)}", least, tuple(ratios))
        for way, what, least in GOALS
        if (ratios := [_ratio(rates, key) for key in rates if key[:2] == (way, what)])
    ]
    for way in (PLAIN, SHARED):
        pairs = [(key, (*key[:3], "sgd")) for key in rates if key[0] == way and key[1] != PULL and key[3] == "adagrad"]
        ratios = [rates[one] / rates[other] for one, other in pairs if other in rates]
        if ratios:
            found.append(Goal(f"{way}, adagrad, of sgd", 1 / SLOWER_MOST, tuple(ratios)))
    return found


def as_data(rows: Sequence[PsRow]) -> dict[str, Any]:
    """Rows with all rounds, and goals, for JSON."""
    return {
        "rows": [{**asdict(row), "rate": row.rate} for row in rows],
        "goals": [{**asdict(goal), "met": goal.met} for goal in goals(rows)],
    }


def print_rows(rows: Sequence[PsRow]) -> None:
    """Print medians, what they are of those of a raw socket, and what is asked for."""
    console, rates = make_console(), _rates(rows)
    compared = [(row.way, row.what, f"{row.rate / 1e9:.2f} GB/s") for row in rows if row.way not in WAYS]
    print_columns(console, ("beside", "how", "rate"), compared, left=2)
    cells = []
    for way, shards, rule in dict.fromkeys((row.way, row.shards, row.rule) for row in rows if row.way in WAYS):
        keys: list[Key] = [(way, what, shards, rule) for what in (PUSH, PULL, PUSH_PULL)]
        shown = [f"{rates[key] / 1e9:.2f} GB/s ({_ratio(rates, key):.2f})" for key in keys]
        cells.append((way, rule, str(shards), *shown))
    console.print(f"\nin brackets, of {RAW}: {ONE_WAY}, for {PUSH_PULL} {BOTH_WAYS}")
    console.print("pushed is memory that is given away, as of accrued gradients; any other is copied once more")
    print_columns(console, ("way", "rule", "shards", PUSH, PULL, PUSH_PULL), cells, left=2)
    console.print()
    asked = [
        (goal.text, f"{goal.least:.2f}", " ".join(f"{ratio:.2f}" for ratio in goal.ratios), "yes" if goal.met else "no")
        for goal in goals(rows)
    ]
    print_columns(console, ("goal", "at least", "is", "met"), asked)


def _rates(rows: Sequence[PsRow]) -> dict[Key, float]:
    return {(row.way, row.what, row.shards, row.rule): row.rate for row in rows}


def _beside(what: str) -> str:
    return BOTH_WAYS if what == PUSH_PULL else ONE_WAY


def _ratio(rates: Mapping[Key, float], key: Key) -> float:
    return rates[key] / rates[RAW, _beside(key[1]), 0, ""]
