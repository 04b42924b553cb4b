"""`Listeners`: several listeners of a run as one."""

from collections.abc import Sequence
from pathlib import Path

from ..run_listener import CheckpointReport, EvaluationReport, LossReport, RolesReport, RunListener, StepReport


class Listeners(RunListener):
    """Passes on what is heard of a run to all, in their order; training may stop if one may have it stop."""

    def __init__(self, listeners: Sequence[RunListener]) -> None:
        self._listeners = listeners
        self.may_stop = any(one.may_stop for one in listeners)

    @property
    def stop_requested(self) -> bool:
        """Whether one of them requests it."""
        return any(one.stop_requested for one in self._listeners)

    def on_begin(self, folder: Path) -> None:
        """Pass it on."""
        for one in self._listeners:
            one.on_begin(folder)

    def on_step(self, report: StepReport) -> None:
        """Pass it on."""
        for one in self._listeners:
            one.on_step(report)

    def on_roles(self, report: RolesReport) -> None:
        """Pass it on."""
        for one in self._listeners:
            one.on_roles(report)

    def on_evaluate(self, report: EvaluationReport) -> None:
        """Pass it on."""
        for one in self._listeners:
            one.on_evaluate(report)

    def on_checkpoint(self, report: CheckpointReport) -> None:
        """Pass it on."""
        for one in self._listeners:
            one.on_checkpoint(report)

    def on_machine_lost(self, report: LossReport) -> None:
        """Pass it on."""
        for one in self._listeners:
            one.on_machine_lost(report)

    def on_output(self, text: str) -> None:
        """Pass it on."""
        for one in self._listeners:
            one.on_output(text)

    def on_notice(self, words: str) -> None:
        """Pass it on."""
        for one in self._listeners:
            one.on_notice(words)
