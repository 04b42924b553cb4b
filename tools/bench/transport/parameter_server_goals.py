"""The goals for the speed of parameter servers, and the tables of `cutset bench ps`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...units import NONE
from ..bench_table import BenchTable, Column, format_rate
from .parameter_server import BOTH_WAYS, ONE_WAY, PULL, PUSH, PUSH_PULL, WAYS, Key, ServerRate
from .pslite import PSLITE
from .transports import CURVE, PLAIN, RAW, SHARED

MIN_ADAGRAD = 0.85  # of SGD's rate
MIN_ENCRYPTED = 0.6  # of the rate over plain TCP
GOALS = ((PLAIN, PUSH, 0.9), (PLAIN, PULL, 0.9), (PLAIN, PUSH_PULL, 0.9))
PSLITE_GOALS = ((PLAIN, PUSH, 1.0), (PLAIN, PULL, 1.0), (PLAIN, PUSH_PULL, 1.0), (SHARED, PUSH_PULL, 1.8))


@dataclass(frozen=True)
class RateGoal:
    """A goal for ratios of rates: one for each optimizer and number of shards. Each should be at least `minimum`."""

    text: str
    minimum: float
    ratios: tuple[float, ...]

    @property
    def met(self) -> bool:
        """Whether every ratio reaches the minimum."""
        return min(self.ratios) >= self.minimum


def judge_goals(rows: Sequence[ServerRate]) -> list[RateGoal]:
    """Return the goals for which everything needed was measured."""
    rates = _index_rates(rows)
    goals = [
        RateGoal(f"{way}, {what}, of {RAW} {_choose_reference(what)}", minimum, tuple(ratios))
        for way, what, minimum in GOALS
        if (ratios := [_compute_ratio(rates, key) for key in rates if key[:2] == (way, what)])
    ]
    for way, what, minimum in PSLITE_GOALS:
        ours, theirs = rates.get((way, what, 1, "sgd")), rates.get((PSLITE, what, 1, "sgd"))
        if ours is not None and theirs is not None:
            goals.append(RateGoal(f"{way}, {what}, of {PSLITE}", minimum, (ours / theirs,)))
    pairs = [(key, (PLAIN, *key[1:])) for key in rates if key[0] == CURVE]
    if ratios := [rates[curve] / rates[plain] for curve, plain in pairs if plain in rates]:
        goals.append(RateGoal(f"{CURVE}, of {PLAIN}", MIN_ENCRYPTED, tuple(ratios)))
    for way in (PLAIN, CURVE, SHARED):
        pairs = [(key, (*key[:3], "sgd")) for key in rates if key[0] == way and key[1] != PULL and key[3] == "adagrad"]
        ratios = [rates[adagrad] / rates[sgd] for adagrad, sgd in pairs if sgd in rates]
        if ratios:
            goals.append(RateGoal(f"{way}, adagrad, of sgd", MIN_ADAGRAD, tuple(ratios)))
    return goals


def tabulate_rates(rows: Sequence[ServerRate]) -> BenchTable[ServerRate]:
    """Return the table of median rates and of their ratios to those of a raw socket."""
    rates = _index_rates(rows)

    def get_ratio(row: ServerRate) -> float | None:
        return _compute_ratio(rates, (row.way, row.what, row.shards, row.optimizer)) if row.way in WAYS else None

    columns: list[Column[ServerRate]] = [
        Column("transport", "way", align="left"),
        Column("optimizer", "optimizer", lambda name: name or NONE, align="left"),
        Column("shards", "shards", lambda count: str(count or NONE)),
        Column("operation", "what", align="left"),
        Column("rate", "rate", format_rate),
        Column(f"of {RAW}", "", "{:.2f}".format, get_ratio),
        Column("", "rates"),
    ]
    notes = (
        f"of {RAW}: its rate {ONE_WAY}, and for {PUSH_PULL} its rate {BOTH_WAYS}.",
        "A push gives its memory away, as accumulated gradients do; any other push needs one more copy.",
    )
    return BenchTable(columns, rows, notes=notes)


GOAL_COLUMNS: tuple[Column[RateGoal], ...] = (
    Column("goal", "text", align="left"),
    Column("at least", "minimum", "{:.2f}".format),
    Column("measured", "ratios", lambda ratios: " ".join(f"{ratio:.2f}" for ratio in ratios)),
    Column("met", "met", lambda met: "yes" if met else "no"),
)


def tabulate_goals(rows: Sequence[ServerRate]) -> BenchTable[RateGoal]:
    """Return the table of the goals and of what was measured for each."""
    return BenchTable(GOAL_COLUMNS, judge_goals(rows), name="goals")


def _index_rates(rows: Sequence[ServerRate]) -> dict[Key, float]:
    return {(row.way, row.what, row.shards, row.optimizer): row.rate for row in rows}


def _choose_reference(what: str) -> str:
    return BOTH_WAYS if what == PUSH_PULL else ONE_WAY


def _compute_ratio(rates: Mapping[Key, float], key: Key) -> float:
    """Return a rate over that of the raw socket, used in the same directions."""
    return rates[key] / rates[RAW, _choose_reference(key[1]), 0, ""]
