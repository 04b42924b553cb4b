"""What the commands print: result tables, placement summaries, progress and errors.

Results go to stdout; progress and errors to stderr, so that `--json` output stays clean. Colours only on a terminal and
without NO_COLOR, which rich heeds by itself.
"""

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
from ..figures.cut_map_edges import crossings
from .table_rows import ITERATION_COLUMNS, RESULT_COLUMNS, few, is_chosen, iteration_cells, ranked, result_cells
from ..units import bytes_text, count_text, percent_text, seconds_text

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_PLAIN_WIDTH = 160
_WIDEST = 10_000
_MOST_CROSSINGS = 8
_MOST_CANDIDATES = 15


def make_console(*, stderr: bool = False) -> Console:
    """A console that does not break lines at 80 columns where no terminal sets a width."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=_PLAIN_WIDTH)


def result_table(result: Mapping[str, Any], *, console: Console | None = None) -> None:
    """Print the rows of a run, its verdict, why a step took so long, and its notes.

    Where the terminal is narrow, a run becomes a column.
    """
    console = console or make_console()
    rows = [result_cells(row) for row in result["rows"]]
    table = _table(RESULT_COLUMNS, rows)
    if _width(console, table) > console.width:
        names, *values = zip(RESULT_COLUMNS, *rows, strict=True)
        table = _table(names, values)
    console.print(Text(f"{result['task']}\n", style="bold"))
    _print_table(console, table)
    console.print(Text(str(result["verdict"]), style="bold"))
    if result.get("iterations"):
        print_columns(console, ITERATION_COLUMNS, [iteration_cells(one) for one in few(result["iterations"])])
    if result.get("measured"):
        console.print(Text("\n".join(result["measured"]["why"])))
    for said in result.get("served_why") or ():
        console.print(Text(said))
    for note in result.get("notes") or ():
        console.print(Text(f"note: {note}", style="dim"))


def placement_summary(placement: Placement, *, console: Console | None = None) -> None:
    """Print the verdict, the machines, the tensors that cross most, and the candidates."""
    console = console or make_console()
    predicted = placement.predicted
    one = seconds_text(predicted.one_machine_s)
    step = f"step of {placement.batch} samples {seconds_text(predicted.step_s)}, on one machine {one}"
    console.print(Text(placement.verdict, style="bold"))
    console.print(Text(f"{placement.model}: {step}, by the prediction"))
    if placement.blocks:
        console.print(Text(f"blocks by hand: {', '.join(placement.blocks)}"))
    console.print()
    work = sum(machine.flops for machine in placement.machines) or 1.0
    columns = ("machine", "FLOP a step", "part", "busy", "memory", "of its limit", "parameters")
    rows = [_machine(i, machine, work) for i, machine in enumerate(placement.machines)]
    print_columns(console, columns, rows)
    _print_crossings(placement, console)
    listed = ("  candidate", "machines", "step", "bytes forward", "memory", "fits", "least share")
    print_columns(console, listed, _candidates(placement))
    hidden = len(placement.candidates) - _MOST_CANDIDATES
    more = f"; {hidden} slower ones are in the file" if hidden > 0 else ""
    console.print(Text(f"* chosen: {placement.winner}, for its {placement.objective}{more}"))
    if placement.left_out:
        console.print(Text(f"Left out: {'; '.join(_left_out(placement))}"))


def print_error(error: CutsetError, *, console: Console | None = None) -> None:
    """Print code, facts and fix to stderr, lines unbroken so that the fix can be copied."""
    console = console or make_console(stderr=True)
    console.print(Text.assemble(("error ", "bold red"), (error.code, "bold red"), ": ", error.facts), soft_wrap=True)
    if error.fix:
        console.print(Text.assemble(("  fix: ", "bold"), error.fix), soft_wrap=True)


def print_columns(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Print a table of plain texts, the first `left` columns to the left and the others to the right."""
    _print_table(console, _table(columns, rows, left=left))


class Progress:
    """Progress of one run as a context manager: a bar on a terminal, else a plain line each tenth or every few seconds.

    total: what `update` counts up to. clock and every_s: time between plain lines.
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
            self._bar = _make_bar(self._console, self._label, self._total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif kind is None and self._printed is not None and self._printed[0] != self._done:
            self._line()

    def __repr__(self) -> str:
        return f"Progress({self._label!r}, {self._done} of {self._total})"

    def update(self, done: int, note: str = "") -> None:
        """Say how far it is. note: a few words, as the loss."""
        self._done, self._note = done, note
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, note=note)
        elif self._due():
            self._line()

    def _due(self) -> bool:
        if self._printed is None:
            return True
        done, at = self._printed
        further = 10 * self._done // self._total > 10 * done // self._total
        return further or (self._done > done and self._clock() - at >= self._every_s)

    def _line(self) -> None:
        self._printed = (self._done, self._clock())
        share = percent_text(min(self._done / self._total, 1.0))
        text = f"{self._label}: {share}, {self._done} of {self._total}" + (f", {self._note}" if self._note else "")
        self._console.print(Text(text), soft_wrap=True)


def _make_bar(console: Console, label: str, total: int) -> "Bar":
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn  # slow to import
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    bar = Bar(*columns, TextColumn("{task.fields[note]}", markup=False), console=console)
    bar.add_task(label, total=total, note="")
    return bar


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> Table:
    """A table of plain texts: the first columns to the left and the others to the right, no line broken."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for i, label in enumerate(columns):
        table.add_column(Text(label), justify="left" if i < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _width(console: Console, table: Table) -> int:
    """The columns of the terminal that the table needs without breaking a line."""
    return console.measure(table, options=console.options.update(width=_WIDEST)).maximum


def _print_table(console: Console, table: Table) -> None:
    """Never cut a number: where a table is wider than the terminal, the terminal breaks its lines."""
    table.width = _width(console, table)
    console.print(table, soft_wrap=True)
    console.print()


def _machine(i: int, machine: MachinePlacement, work: float) -> tuple[str, ...]:
    used = machine.memory_used_bytes / machine.memory_bytes if machine.memory_bytes else 0.0
    return (
        f"{i} {machine.name}",
        count_text(machine.flops),
        percent_text(machine.flops / work),
        seconds_text(machine.busy_s),
        bytes_text(machine.memory_used_bytes),
        percent_text(used) + (" over" if used > 1 else ""),
        count_text(machine.parameters),
    )


def _print_crossings(placement: Placement, console: Console) -> None:
    items = sorted(crossings(placement).values(), key=lambda item: (-item.total, item.tensor))
    if not items:
        console.print(Text("Nothing crosses between machines."))
        return
    rows = [(item.tensor, bytes_text(item.total), str(len(item.pairs))) for item in items[:_MOST_CROSSINGS]]
    print_columns(console, ("crossing tensor", "bytes forward", "pairs of machines"), rows)
    total = sum(item.total for item in items)
    rest = f", {len(items) - _MOST_CROSSINGS} more not shown" if len(items) > _MOST_CROSSINGS else ""
    console.print(Text(f"{len(items)} tensors cross, {bytes_text(total)} forward{rest}\n"))


def _candidates(placement: Placement) -> list[tuple[str, ...]]:
    return [
        (
            ("* " if is_chosen(score, placement) else "  ") + score.name,
            str(score.machines),
            seconds_text(score.step_s),
            bytes_text(score.bytes_forward),
            bytes_text(score.memory_max_bytes),
            "yes" if score.fits else "no",
            percent_text(score.least_share),
        )
        for at, score in enumerate(ranked(placement))
        if at < _MOST_CANDIDATES or is_chosen(score, placement)
    ]


def _left_out(placement: Placement) -> list[str]:
    """Why candidates were not there, each reason with all that share it."""
    by_reason: dict[str, list[str]] = {}
    for skipped in placement.left_out:
        names = by_reason.setdefault(skipped.reason, [])
        if skipped.name not in names:
            names.append(skipped.name)
    return [f"{', '.join(names)} ({reason})" for reason, names in by_reason.items()]
