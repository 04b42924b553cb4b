"""`EventFiles`: what is heard of a run as TensorBoard's events, in the folder tensorboard of the run folder."""

import warnings
from pathlib import Path
from types import TracebackType
from typing import Any

from ...errors import UsageError
from ..run_folder import EVENTS
from ..run_listener import EvaluationReport, RunListener, StepReport


class EventFiles(RunListener):
    """Writes scalars over samples while entered, each run in a folder of its own, as TensorBoard compares them.

    UsageError E294 where tensorboard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of its own dependencies
                from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            facts = f"--tensorboard: it is not installed ({error})"
            raise UsageError("E294", facts, fix="pip install tensorboard, or leave the option out") from error
        self._make = SummaryWriter
        self._folder, self._writers = folder / EVENTS, dict[str, Any]()

    def __enter__(self) -> "EventFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._writers.values():
            writer.close()

    def on_step(self, report: StepReport) -> None:
        """Write the loss of a step."""
        if report.loss is not None:
            self._write(report.run, "loss", report.loss, report.samples)

    def on_evaluate(self, report: EvaluationReport) -> None:
        """Write the scores that there are."""
        scores = {"test_loss": report.test_loss, "test_accuracy": report.test_accuracy, **report.metrics}
        for name, value in scores.items():
            if value is not None:
                self._write(report.run, name, value, report.samples)
        if report.run in self._writers:
            self._writers[report.run].flush()

    def _write(self, run: str, name: str, value: float, samples: int) -> None:
        if run not in self._writers:
            self._writers[run] = self._make(str(self._folder / run.replace(" ", "-")))
        self._writers[run].add_scalar(name, value, samples)
