"""A run in the terminal: a table that changes, or a plain line now and then where there is no terminal."""

import time
from collections.abc import Callable, Sequence
from datetime import datetime

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from ..report.console import make_console
from .role_rows import COLUMNS, list_rows
from .run_follower import RunFollower

REFRESH_S = 1.0
PLAIN_S = 5.0  # between two plain lines
SHOWN = 8  # happenings
SPACE, MIN_REMARKS = 3, 24  # columns of a terminal: between two of the table, and of its last


def watch_in_terminal(
    follower: RunFollower, *, console: Console | None = None, wait: Callable[[float], object] = time.sleep
) -> None:
    """Show a run until it has ended. wait: waits for some seconds."""
    from rich.live import Live

    console = console or make_console()
    if not console.is_terminal:
        _print_lines(follower, console, wait)
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            follower.update()
            live.update(render_run(follower, console.width), refresh=True)
            if follower.is_over:
                return
            wait(REFRESH_S)


def _print_lines(follower: RunFollower, console: Console, wait: Callable[[float], object]) -> None:
    """Print what has happened, and how far the run is."""
    printed, last = 0.0, ""
    while True:
        follower.update()
        state, progress = follower.describe()
        for at, words in follower.view.happenings:
            if at > printed:
                console.print(Text(f"{_format_time(at)} {words}"), soft_wrap=True)
                printed = at
        if progress != last:
            console.print(Text(progress), soft_wrap=True)
            last = progress
        if follower.is_over:
            console.print(Text(state), soft_wrap=True)
            return
        wait(PLAIN_S)


def render_run(follower: RunFollower, width: int) -> RenderableType:
    """Return what a terminal of so many columns shows of a run now."""
    view, (state, progress) = follower.view, follower.describe()
    task = f"{view.facts['task']} by {view.facts['method']}" if view.facts else ""
    parts: list[RenderableType] = [Text(f"{task}\n", style="bold"), Text(state)]
    parts += [Text(progress)] if progress else []
    if rows := list_rows(view):
        parts += [Text(), _make_table(rows, width)]
    happened = list(view.happenings)[-SHOWN:]
    parts += [Text(), *(Text(f"{_format_time(at)} {words}") for at, words in happened)] if happened else []
    return Group(*parts)


def _make_table(rows: Sequence[Sequence[str]], width: int) -> Table:
    """Return the rows as a table, whose last columns are left out where the terminal has no room for them."""
    cells = [COLUMNS, *rows]
    widths = [max(len(row[column]) for row in cells) + SPACE for column in range(len(COLUMNS))]
    *numbers, remarks = range(len(COLUMNS))
    while len(numbers) > 1 and sum(widths[column] for column in numbers) + MIN_REMARKS > width:
        numbers.pop()
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in numbers:
        side: JustifyMethod = "right" if column else "left"
        table.add_column(Text(COLUMNS[column]), justify=side, no_wrap=True, min_width=widths[column] - SPACE)
    table.add_column(Text(COLUMNS[remarks]), overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[column]) for column in (*numbers, remarks)))
    return table


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%H:%M:%S")
