"""What the commands print: result tables, placement summaries, progress and errors.

Results go to stdout; progress and errors to stderr, so that `--json` output stays clean. Colours only on a terminal and
without NO_COLOR, which rich heeds by itself.
"""

import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...errors import CutsetError
from ...partition.placement.placement_file import MachinePlacement, Placement
from ..figures.cut_map_edges import collect_crossings
from ..units import OPEN_ENDED, format_bytes, format_count, format_percent, format_seconds
from .table_rows import (
    ITERATION_COLUMNS,
    format_iteration,
    format_results,
    is_chosen,
    rank_candidates,
    sample_iterations,
)

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_PLAIN_WIDTH = 160
_WIDEST = 10_000
_MAX_CROSSINGS = 8
AS_FAST = 0.97  # of a step; of those that are closer the planner may take one that sends less
_MAX_CANDIDATES = 15


class _ResultConsole(Console):
    """A console on stdout; where its reader has ended, as in `cutset plan | head -1`, click ends the command."""

    def on_broken_pipe(self) -> None:
        """Do not end as rich does, with an error."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that does not break lines at 80 columns if no terminal sets a width."""
    kind = Console if stderr else _ResultConsole
    console = kind(stderr=stderr, highlight=False)
    return console if console.is_terminal else kind(stderr=stderr, highlight=False, width=_PLAIN_WIDTH)


def print_result(result: Mapping[str, Any], *, console: Console | None = None) -> None:
    """Print the rows of a run, its verdict, why a step took so long, and its notes.

    If the terminal is narrow, each run becomes a column.
    """
    console = console or make_console()
    names, rows = format_results(result["rows"])
    table = _make_table(names, rows, [i > 0 for i in range(len(names))])
    if _measure_width(console, table) > console.width:
        headings, *columns = zip(names, *rows, strict=True)
        table = _make_table(headings, columns, [i > 0 for i in range(len(headings))])
    console.print(Text(f"{result['task']}\n", style="bold"))
    _print_table(console, table)
    console.print(Text(str(result["verdict"]), style="bold"))
    if result.get("iterations"):
        print_columns(
            console, ITERATION_COLUMNS, [format_iteration(one) for one in sample_iterations(result["iterations"])]
        )
    if result.get("measured"):
        console.print(Text("\n".join(result["measured"]["findings"])))
    for line in result.get("server_findings") or ():
        console.print(Text(line))
    for note in result.get("notes") or ():
        console.print(Text(f"note: {note}", style="dim"))


def print_placement(placement: Placement, *, console: Console | None = None) -> None:
    """Print the verdict, the machines, the tensors that cross most, and the candidates."""
    console = console or make_console()
    predicted = placement.predicted
    one = format_seconds(predicted.one_machine_s)
    step = f"step of {placement.batch} samples {format_seconds(predicted.step_s)}, on one machine {one}"
    console.print(Text(placement.verdict, style="bold"))
    console.print(Text(f"{placement.model}: {step} (predicted)"))
    if predicted.least_s > 0 and len(placement.machines) > 1:
        times = f"{predicted.step_s / predicted.least_s:.3g} times that"
        least = f"at best {format_seconds(predicted.least_s)}, if nothing were sent and no machine waited"
        console.print(Text(f"{least}; this plan takes {times}"))
    if placement.leaf_modules:
        console.print(Text(f"leaf modules: {', '.join(placement.leaf_modules)}"))
    console.print()
    work = sum(machine.flops for machine in placement.machines) or 1.0
    columns = ("machine", "FLOP a step", "part", "busy", "memory", "of its limit", "parameters")
    rows = [_format_machine(i, machine, work) for i, machine in enumerate(placement.machines)]
    print_columns(console, columns, rows)
    _print_crossings(placement, console)
    listed = ("  candidate", "machines", "step", "bytes forward", "memory", "fits", "min load")
    print_columns(console, listed, _format_candidates(placement))
    more = describe_left_out(len(placement.candidates) - _MAX_CANDIDATES)
    console.print(Text(f"* chosen: {placement.winner}, for its {placement.objective}{_limit_choice(placement)}{more}"))
    if placement.rejected:
        console.print(Text(f"Rejected: {'; '.join(_describe_rejected(placement))}"))


def describe_left_out(hidden: int) -> str:
    """Return words on rows of a table of plans that are not shown."""
    if hidden <= 0:
        return ""
    return "; 1 slower one is left out" if hidden == 1 else f"; {hidden} slower ones are left out"


def print_error(error: CutsetError, *, console: Console | None = None) -> None:
    """Print code, facts and fix to stderr, lines unbroken so that the fix can be copied."""
    console = console or make_console(stderr=True)
    console.print(Text.assemble(("error ", "bold red"), (error.code, "bold red"), ": ", error.facts), soft_wrap=True)
    if error.fix:
        console.print(Text.assemble(("  fix: ", "bold"), error.fix), soft_wrap=True)


def print_columns(
    console: Console,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int = 1,
    right: Sequence[bool] | None = None,
) -> None:
    """Print a table of plain texts.

    right: which columns are aligned to the right; by default all but the first `left` ones.
    """
    _print_table(console, _make_table(columns, rows, right or [i >= left for i in range(len(columns))]))


class Progress:
    """Progress of one run as a context manager: a bar on a terminal, else a plain line each tenth or every few seconds.

    total: what `update` counts up to, OPEN_ENDED or more where nobody knows. clock, every_s: time between plain lines.
    """

    def __init__(
        self,
        label: str,
        total: int,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = 5.0,
    ) -> None:
        self._label = label
        self._total = max(total, 1)
        self._console = console or make_console(stderr=True)
        self._clock = clock
        self._every_s = every_s
        self._done = 0
        self._note = ""
        self._printed: tuple[int, float] | None = None
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar = _make_bar(self._console, self._label, None if self._total >= OPEN_ENDED else self._total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif kind is None and self._printed is not None and self._printed[0] != self._done:
            self._print_line()

    def __repr__(self) -> str:
        return f"Progress({self._label!r}, {self._done} of {self._total})"

    def update(self, done: int, note: str = "") -> None:
        """Report how far the run is. note: a few words, as the loss."""
        self._done, self._note = done, note
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, note=note)
        elif self._is_due():
            self._print_line()

    def _is_due(self) -> bool:
        if self._printed is None:
            return True
        done, at = self._printed
        further = 10 * self._done // self._total > 10 * done // self._total
        return further or (self._done > done and self._clock() - at >= self._every_s)

    def _print_line(self) -> None:
        self._printed = (self._done, self._clock())
        share = format_percent(min(self._done / self._total, 1.0))
        is_open = self._total >= OPEN_ENDED
        reached = f"{self._done} batches" if is_open else f"{share}, {self._done} of {self._total}"
        text = f"{self._label}: {reached}" + (f", {self._note}" if self._note else "")
        self._console.print(Text(text), soft_wrap=True)


def _make_bar(console: Console, label: str, total: int | None) -> "Bar":
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn  # slow to import
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    bar = Bar(*columns, TextColumn("{task.fields[note]}", markup=False), console=console)
    bar.add_task(label, total=total, note="")
    return bar


def _make_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> Table:
    """Return a table of plain texts in which no line is broken."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for label, to_right in zip(columns, right, strict=True):
        table.add_column(Text(label), justify="right" if to_right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _measure_width(console: Console, table: Table) -> int:
    """Return how many columns of the terminal the table needs if no line is broken."""
    return console.measure(table, options=console.options.update(width=_WIDEST)).maximum


def _print_table(console: Console, table: Table) -> None:
    """Print a table without cutting a number: if it is wider than the terminal, the terminal wraps its lines."""
    table.width = _measure_width(console, table)
    console.print(table, soft_wrap=True)
    console.print()


def _format_machine(i: int, machine: MachinePlacement, work: float) -> tuple[str, ...]:
    used = machine.memory_used_bytes / machine.memory_bytes if machine.memory_bytes else 0.0
    return (
        f"{i} {machine.name}",
        format_count(machine.flops),
        format_percent(machine.flops / work),
        format_seconds(machine.busy_s),
        format_bytes(machine.memory_used_bytes),
        format_percent(used) + (" over" if used > 1 else ""),
        format_count(machine.parameters),
    )


def _print_crossings(placement: Placement, console: Console) -> None:
    items = sorted(collect_crossings(placement).values(), key=lambda item: (-item.total, item.tensor))
    if not items:
        console.print(Text("Nothing crosses between machines."))
        return
    rows = [(item.tensor, format_bytes(item.total), str(len(item.pairs))) for item in items[:_MAX_CROSSINGS]]
    print_columns(console, ("crossing tensor", "bytes forward", "pairs of machines"), rows)
    total = sum(item.total for item in items)
    shown = f"; the {_MAX_CROSSINGS} largest are shown" if len(items) > _MAX_CROSSINGS else ""
    crossing = "1 tensor crosses" if len(items) == 1 else f"{len(items)} tensors cross"
    console.print(Text(f"{crossing}, {format_bytes(total)} forward{shown}\n"))


def _format_candidates(placement: Placement) -> list[tuple[str, ...]]:
    return [
        (
            ("* " if is_chosen(score, placement) else "  ") + score.name,
            str(score.machines),
            format_seconds(score.step_s),
            format_bytes(score.bytes_forward),
            format_bytes(score.peak_memory_bytes),
            "yes" if score.fits else "no",
            format_percent(score.min_load),
        )
        for at, score in enumerate(rank_candidates(placement))
        if at < _MAX_CANDIDATES or is_chosen(score, placement)
    ]


def _limit_choice(placement: Placement) -> str:
    """Say among which candidates the chosen one is the best, where a faster one leaves machines out or idle."""
    limit_s = AS_FAST * placement.predicted.step_s
    is_beaten = any(one.fits and one.step_s < limit_s for one in placement.candidates)
    return " among those with work for every machine" if is_beaten and placement.objective == "time" else ""


def _describe_rejected(placement: Placement) -> list[str]:
    """Name the candidates that could not be made, those of one reason together."""
    by_reason: dict[str, list[str]] = {}
    for skipped in placement.rejected:
        names = by_reason.setdefault(skipped.reason, [])
        if skipped.name not in names:
            names.append(skipped.name)
    return [f"{', '.join(names)} ({reason})" for reason, names in by_reason.items()]
