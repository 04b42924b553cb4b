"""A listener of a run made of functions."""

from collections.abc import Callable
from typing import Any

from cutset.tools.run_listener import CheckpointReport, EvaluationReport, LossReport, RunListener, StepReport


class Listening(RunListener):
    """Calls `on_step(step, loss)` and `on_notice(words)`, and keeps the other reports."""

    def __init__(
        self,
        on_step: Callable[[int, float], Any] = lambda step, loss: None,
        *,
        on_notice: Callable[[str], Any] = lambda words: None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self._on_step, self._on_notice, self._stop = on_step, on_notice, stop
        self.may_stop = stop is not None
        self.evaluations: list[EvaluationReport] = []
        self.checkpoints: list[CheckpointReport] = []
        self.losses: list[LossReport] = []

    @property
    def stop_requested(self) -> bool:
        return self._stop is not None and self._stop()

    def on_step(self, report: StepReport) -> None:
        self._on_step(report.step, report.loss)

    def on_evaluate(self, report: EvaluationReport) -> None:
        self.evaluations.append(report)

    def on_checkpoint(self, report: CheckpointReport) -> None:
        self.checkpoints.append(report)

    def on_machine_lost(self, report: LossReport) -> None:
        self.losses.append(report)

    def on_notice(self, words: str) -> None:
        self._on_notice(words)
