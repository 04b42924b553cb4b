"""The table of `cutset bench methods` for a terminal, as Markdown and as data, and the goals with how they were met."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.text import Text

from ...report.console import make_console, print_columns
from ...units import NONE, bytes_text, percent_text, seconds_text
from .methods import DDP_64, ONE, TARGET, MethodRow

COLUMNS = (
    "method",
    "settings",
    "processes",
    "accuracy",
    f"to {percent_text(TARGET)}",
    "samples/s",
    "of one process",
    "staleness",
    "bytes a step",
)
WORST = 0.01  # below one process
DOWNPOUR_OF_DDP, DOWNPOUR_OF_ONE, HOGWILD_OF_ONE = 1.5, 1.3, 1.6
# With n_fetch and n_push of 4 at most, the shard on the same host.
SHARED = ("downpour", "downpour every 4", "downpour every 4 overlapped")


@dataclass(frozen=True)
class Goal:
    """What was to be reached, and what was."""

    words: str
    reached: float
    wanted: float
    show: Callable[[float], str]

    @property
    def met(self) -> bool:
        return self.reached >= self.wanted

    def __str__(self) -> str:
        return f"{'met' if self.met else 'MISSED'}: {self.words} {self.show(self.wanted)}: {self.show(self.reached)}"


def of_another(row: MethodRow, other: MethodRow) -> float:
    """The median over the rounds of how many times the other's samples a second a row had."""
    if len(row.rates) != len(other.rates):
        return row.samples_per_s / other.samples_per_s
    return median(a / b for a, b in zip(row.rates, other.rates, strict=True))


def goals(rows: Sequence[MethodRow]) -> list[Goal]:
    """As far as the rows tell."""
    by = {row.name: row for row in rows}
    one, found = by[ONE], []
    methods = [row for row in rows if row.ours]
    if methods:
        worst = min(methods, key=lambda row: row.learned.accuracy)
        words = f"the least accurate method ({worst.name}) against one process, at least"
        found.append(Goal(words, worst.learned.accuracy - one.learned.accuracy, -WORST, _points))
    for name, other, wanted in (
        ("downpour", by.get(DDP_64), DOWNPOUR_OF_DDP),
        ("downpour", one, DOWNPOUR_OF_ONE),
        ("hogwild", one, HOGWILD_OF_ONE),
    ):
        rivals = [by[each] for each in (SHARED if name == "downpour" else (name,)) if each in by]
        if rivals and other is not None:
            best = max(rivals, key=lambda row: of_another(row, other))
            words = f"{best.name}, samples/s of {other.name}, at least"
            found.append(Goal(words, of_another(best, other), wanted, _times))
    return found


def _points(share: float) -> str:
    return f"{100 * share:+.2f} points"


def _times(ratio: float) -> str:
    return f"{ratio:.2f} x"


def print_rows(rows: Sequence[MethodRow]) -> None:
    """Print the table, how rates were found, and the goals."""
    console = make_console()
    print_columns(console, COLUMNS, [_cells(row, rows) for row in rows], left=2)
    for line in remarks(rows):
        console.print(Text(line))
    for goal in goals(rows):
        console.print(Text(str(goal), style="" if goal.met else "bold"))


def markdown(rows: Sequence[MethodRow]) -> str:
    """The same as Markdown."""
    side = ["---", "---", *["---:"] * (len(COLUMNS) - 2)]
    lines = [COLUMNS, side, *(_cells(row, rows) for row in rows)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    said = [*remarks(rows), "", *(f"- {goal}" for goal in goals(rows))]
    return f"{table}\n\n" + "\n".join(said) + "\n"


def remarks(rows: Sequence[MethodRow]) -> list[str]:
    """What the numbers are, and how the rates were found."""
    rounds = max(len(row.rates) for row in rows)
    tried = "; ".join(f"{row.name}: {row.found}" for row in rows if row.found)
    return [
        f"{rows[0].learned.curve[-1][0]} samples each, two replicas, {os.cpu_count()} cores. Samples/s: median of "
        f"{rounds} rounds in which all take turns, without the start of processes and without tests; time to "
        f"{percent_text(TARGET)}: samples to the first test there, at that rate.",
        f"Rates tried. {tried}." if tried else "",
    ]


def as_data(rows: Sequence[MethodRow]) -> dict[str, Any]:
    """All for JSON."""
    plain = [
        {
            **dataclasses.asdict(row),
            "accuracy": row.learned.accuracy,
            "to_target_s": row.to_target_s,
            "samples_per_s": row.samples_per_s,
            "of_one_process": of_another(row, rows[0]),
        }
        for row in rows
    ]
    met = [{"goal": g.words, "reached": g.reached, "wanted": g.wanted, "met": g.met} for g in goals(rows)]
    return {"rows": plain, "goals": met}


def _cells(row: MethodRow, rows: Sequence[MethodRow]) -> tuple[str, ...]:
    late = row.learned
    return (
        row.name,
        row.settings,
        str(row.processes),
        percent_text(late.accuracy, digits=2),
        "not reached" if row.to_target_s is None else seconds_text(row.to_target_s),
        f"{row.samples_per_s:.0f}",
        _times(of_another(row, rows[0])),
        NONE if late.staleness_mean is None else f"{late.staleness_mean:.2f} / {late.staleness_max}",
        bytes_text(late.bytes_per_step),
    )
