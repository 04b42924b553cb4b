"""The table of `cutset bench methods` and its goals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from ....runtime.hosts.versions import read_cores
from ...units import format_bytes, format_percent, format_seconds
from ..bench_table import BenchTable, Column
from .methods import DDP_64, ONE, TARGET, MethodResult

MAX_ACCURACY_LOSS = 0.01  # against one process
DOWNPOUR_OF_DDP, DOWNPOUR_OF_ONE, HOGWILD_OF_ONE = 1.5, 1.3, 1.6
# With n_fetch and n_push of 4 at most, the shard on the same host.
SHARED = ("downpour", "downpour every 4", "downpour every 4 overlapped")


@dataclass(frozen=True)
class MethodGoal:
    """A goal and what was reached. format: how both are printed."""

    goal: str
    reached: float
    wanted: float
    format: Callable[[float], str]

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self.reached >= self.wanted

    def __str__(self) -> str:
        verdict = "met" if self.met else "MISSED"
        return f"{verdict}: {self.goal} {self.format(self.wanted)}: {self.format(self.reached)}"


GOAL_KEYS = ("goal", "reached", "wanted", "met")


def compute_speedup(row: MethodResult, other: MethodResult) -> float:
    """Return the median over the rounds of a row's samples per second over another's."""
    if len(row.rates) != len(other.rates):
        return row.samples_per_s / other.samples_per_s
    return median(a / b for a, b in zip(row.rates, other.rates, strict=True))


def judge_goals(rows: Sequence[MethodResult]) -> list[MethodGoal]:
    """Return the goals for which everything needed was measured."""
    by_name = {row.name: row for row in rows}
    one, goals = by_name[ONE], []
    methods = [row for row in rows if row.ours]
    if methods:
        worst = min(methods, key=lambda row: row.learned.accuracy)
        goal = f"the least accurate method ({worst.name}) against one process, at least"
        loss = worst.learned.accuracy - one.learned.accuracy
        goals.append(MethodGoal(goal, loss, -MAX_ACCURACY_LOSS, _format_points))
    for name, other, wanted in (
        ("downpour", by_name.get(DDP_64), DOWNPOUR_OF_DDP),
        ("downpour", one, DOWNPOUR_OF_ONE),
        ("hogwild", one, HOGWILD_OF_ONE),
    ):
        rivals = [by_name[each] for each in (SHARED if name == "downpour" else (name,)) if each in by_name]
        if rivals and other is not None:
            speedup, best = max((compute_speedup(row, other), row.name) for row in rivals)
            goals.append(MethodGoal(f"{best}, samples/s of {other.name}, at least", speedup, wanted, _format_times))
    return goals


def _format_points(fraction: float) -> str:
    return f"{100 * fraction:+.2f} points"


def _format_times(ratio: float) -> str:
    return f"{ratio:.2f} x"


def tabulate(rows: Sequence[MethodResult]) -> BenchTable[MethodResult]:
    """Return the table of all rows; the notes say what the numbers are, and how the goals were met."""
    goals = judge_goals(rows)
    columns: list[Column[MethodResult]] = [
        Column("method", "name", align="left"),
        Column("settings", "settings", align="left"),
        Column("processes", "processes"),
        Column("accuracy", "accuracy", lambda accuracy: format_percent(accuracy, digits=2), _get_accuracy),
        Column(f"to {format_percent(TARGET)}", value=_get_time_to_target),
        Column("samples/s", "samples_per_s", "{:.0f}".format),
        Column("of one process", "of_one_process", _format_times, lambda row: compute_speedup(row, rows[0])),
        Column("staleness", value=_get_staleness),
        Column("bytes a step", value=lambda row: row.learned.bytes_per_step, format=format_bytes),
        *(Column("", key) for key in ("tuning", "learned", "rates", "ours", "to_target_s")),
    ]
    notes = [*explain_numbers(rows), *(f"- {goal}" for goal in goals)]
    facts = {"goals": [{key: getattr(goal, key) for key in GOAL_KEYS} for goal in goals]}
    return BenchTable(columns, rows, notes=notes, facts=facts)


def _get_accuracy(row: MethodResult) -> float:
    return row.learned.accuracy


def _get_time_to_target(row: MethodResult) -> str:
    return "not reached" if row.to_target_s is None else format_seconds(row.to_target_s)


def _get_staleness(row: MethodResult) -> str | None:
    mean, largest = row.learned.staleness_mean, row.learned.staleness_max
    return None if mean is None else f"{mean:.2f} / {largest}"


def explain_numbers(rows: Sequence[MethodResult]) -> list[str]:
    """Say what the numbers are, and how the rates were found."""
    rounds = max(len(row.rates) for row in rows)
    tried = "; ".join(f"{row.name}: {row.tuning}" for row in rows if row.tuning)
    return [
        f"{rows[0].learned.curve[-1][0]} samples each, two replicas, {read_cores()} cores. Samples/s: the median of "
        f"{rounds} rounds in which all are timed in turn, without the start of processes and without tests. Time to "
        f"{format_percent(TARGET)}: samples up to the first test that reached it, at that rate.",
        *([f"Rates tried. {tried}."] if tried else []),
    ]
