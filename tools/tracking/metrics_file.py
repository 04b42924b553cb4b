"""`MetricsFile`: what is heard of a run, a line of JSON each, in metrics.jsonl of its folder.

Each line has "event" and "time", seconds since 1970, and is written at once, so all but the last survive whatever ends
the run. Events: "begin", "end", "step" and "roles" about once a second, "evaluation", "checkpoint", "lost", "notice";
run_listener.py says what is in them. A run that goes on in the folder adds to the file.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ..run_folder import METRICS
from ..run_listener import CheckpointReport, EvaluationReport, LossReport, RolesReport, RunListener, StepReport
from ..strict_json import to_json
from ..units import OPEN_ENDED

INTERVAL_S = 1.0  # between two lines about steps


class MetricsFile(RunListener):
    """Writes the file in a run folder. Training is more than its log: what cannot be written is a notice, once.

    on_notice: called with it. clock: seconds, for the interval; now: seconds since 1970.
    """

    def __init__(
        self,
        folder: Path,
        on_notice: Callable[[str], object] = lambda words: None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._on_notice, self._clock, self._now = folder / METRICS, on_notice, clock, now
        self._last: dict[str, tuple[float, StepReport]] = {}  # by run, when a line was written, and of what
        self._latest: dict[str, StepReport] = {}
        self._has_failed, self._has_begun = False, False

    @contextmanager
    def recording(self, **facts: Any) -> Iterator[None]:
        """Write that a run begins, with facts about it, and that it ends, with "why" if that is an error."""
        self._write("begin", **facts)
        try:
            yield
        except BaseException as error:
            self._write("end", why=str(error).partition("\n")[0] or type(error).__name__)
            raise
        self._write("end", why=None)

    def on_step(self, report: StepReport) -> None:
        """Write a line, unless one was written a moment ago."""
        self._latest[report.run] = report
        written = self._last.get(report.run)
        if written is None or self._clock() - written[0] >= INTERVAL_S:
            self._write_step(report)

    def on_evaluate(self, report: EvaluationReport) -> None:
        """Write the scores, after the last step before them."""
        latest = self._latest.get(report.run)
        if latest is not None and latest is not self._last[report.run][1]:
            self._write_step(latest)
        scores = {"test_loss": report.test_loss, "test_accuracy": report.test_accuracy, "metrics": report.metrics}
        self._write("evaluation", run=report.run, samples=report.samples, seconds=report.seconds, **scores)

    def on_roles(self, report: RolesReport) -> None:
        """Write what all processes say."""
        leases = {} if report.leases is None else {"leases": report.leases}
        self._write("roles", run=report.run, roles=report.roles, **leases)

    def on_checkpoint(self, report: CheckpointReport) -> None:
        """Write where a checkpoint is."""
        self._write("checkpoint", step=report.step, folder=str(report.folder))

    def on_machine_lost(self, report: LossReport) -> None:
        """Write what was lost."""
        self._write("lost", what=report.what, why=report.why)

    def on_notice(self, words: str) -> None:
        """Write a notice."""
        self._write("notice", words=words)

    def _write_step(self, report: StepReport) -> None:
        _, before = self._last.get(report.run, (0.0, StepReport(report.run, 0, 0, None)))
        seconds = report.seconds - before.seconds
        speed = (report.samples - before.samples) / seconds if seconds > 0 else None
        self._last[report.run] = self._clock(), report
        steps = report.steps if report.steps < OPEN_ENDED else None
        what = {"run": report.run, "step": report.step, "steps": steps, "samples": report.samples}
        self._write("step", **what, seconds=report.seconds, loss=report.loss, samples_per_s=speed)

    def _write(self, event: str, **what: Any) -> None:
        try:
            line = to_json({"event": event, "time": self._now(), **what})
            with self._path.open("ab+") as file:
                file.write(self._end_line_of_before(file) + line.encode() + b"\n")
        except (OSError, TypeError, ValueError) as error:
            if not self._has_failed:
                self._has_failed = True
                why = error.strerror if isinstance(error, OSError) else error
                self._on_notice(f"{self._path} cannot be written: {why}; training goes on")

    def _end_line_of_before(self, file: BinaryIO) -> bytes:
        """Return what ends the line that a run which was killed has begun, nothing where there is none."""
        if self._has_begun:
            return b""
        self._has_begun = True
        if not file.seek(0, os.SEEK_END):
            return b""
        file.seek(-1, os.SEEK_END)
        return b"" if file.read(1) == b"\n" else b"\n"
