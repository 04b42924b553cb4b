"""`RunFollower`: the view of a run folder's last run, kept up to date."""

import time
from collections.abc import Callable
from pathlib import Path

from ..run_folder import METRICS
from .metrics_reader import MetricsReader
from .role_rows import describe_progress
from .run_view import RunView, describe_state


class RunFollower:
    """Follows the run in a folder. UsageError (E259) where the folder is not that of a run.

    now: seconds since 1970.

    Attributes:
        now: that clock.
        view: what is known of the run.
        is_running: whether a process of this machine leads it.
    """

    def __init__(self, folder: Path, *, now: Callable[[], float] = time.time) -> None:
        self._reader, self.now = MetricsReader(folder), now
        self.view, self.is_running = RunView(), self._reader.is_running()
        self._restarts = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be expected."""
        return not self.is_running

    def update(self) -> None:
        """Take into account what was written since the last time."""
        self.is_running = self._reader.is_running()  # first: what it wrote before it ended is read below
        for event in self._reader.read():
            self._notice_another_run()
            try:
                self.view.add(event)
            except ValueError:  # of another version, or of something else
                self._reader.unreadable += 1
        self._notice_another_run()

    def _notice_another_run(self) -> None:
        """Forget the run before where another one has taken the folder."""
        if self._reader.restarts != self._restarts:
            self._restarts, self.view = self._reader.restarts, RunView()

    def describe(self) -> tuple[str, str]:
        """Return what state the run is in, and how far it is."""
        state = describe_state(self.view, is_running=self.is_running, now=self.now())
        count = self._reader.unreadable
        lines = f"{count} {'lines' if count > 1 else 'line'} of {METRICS}"
        cut_short = f" {lines} could not be read: cut short, or of another version of cutset." if count else ""
        return state + cut_short, describe_progress(self.view, is_running=self.is_running)
