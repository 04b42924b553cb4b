"""`RunRecord`: what replica 0 has reported of a run so far - losses, the learning curve - on the run's own clock."""

import time
from typing import Any

from ...runtime.channel.message import Message
from ..job.job import Job
from ..run_listener import EvaluationReport, RunListener, StepReport


class RunRecord:
    """Records what a replica reports, and tells a listener.

    A replica that is restarted begins its own clock anew: it is set against that of the run. Where batches are leased,
    it may come back to some of others, and the count of samples never falls.

    Attributes:
        start_s: when training began.
        curve: the learning curve, as `ProgressLog` has it.
        losses: (samples, loss) at each progress report that has a loss.
        samples: that all replicas have trained on, about, by the last progress report.
    """

    def __init__(self, job: Job, listener: RunListener) -> None:
        self._job, self._listener = job, listener
        self._clock_offsets_s = dict[int, float]()  # seconds of the run when the clock of a restarted replica began
        self.start_s = time.monotonic()
        self.samples = 0
        self.losses: list[tuple[int, float]] = []
        self.curve: list[dict[str, Any]] = []

    @property
    def batches(self) -> int:
        """The batches that all replicas have computed, about, by the last progress report."""
        return self.samples // self._job.training.batch

    def set_clock(self, replica: int, seconds: float) -> None:
        """Note that a replica which was missing trains, for `seconds` by its own clock."""
        self._clock_offsets_s[replica] = time.monotonic() - self.start_s - seconds

    def on_run_clock(self, replica: int, seconds: float) -> float:
        """Return the seconds of the run at which the clock of a replica shows `seconds`."""
        return self._clock_offsets_s.get(replica, 0.0) + seconds

    def handle(self, message: Message) -> None:
        """Take what replica 0 says: its progress, scores, and what its script prints."""
        match message.kind:
            case "progress":
                self._add_progress(message.body)
            case "evaluated":
                self._add_evaluation(message.body)
            case "output":
                self._listener.on_output(message.body["text"])

    def _add_progress(self, body: dict[str, Any]) -> None:
        training, method = self._job.training, self._job.method
        samples = self._count_samples(body)
        self.samples = samples
        if body["loss"] is not None:
            self.losses.append((samples, body["loss"]))
        by_batch = (samples // training.batch, training.batches)
        step, steps = by_batch if self._job.leases_batches else (body["step"], body["steps"])
        seconds = self.on_run_clock(0, body["seconds"])
        self._listener.on_step(StepReport(method.name, step, steps, body["loss"], samples, seconds))

    def _add_evaluation(self, body: dict[str, Any]) -> None:
        seconds = self.on_run_clock(0, body["seconds"])
        point = {**body, "samples": self._count_samples(body), "seconds": seconds}
        self.curve.append(point)
        self._listener.on_evaluate(EvaluationReport.from_point(self._job.method.name, point))

    def go_back(self, samples: int) -> None:
        """Forget what was reported after so many samples, as all roles go back."""
        self.samples = min(self.samples, samples)
        self.losses = [(reached, loss) for reached, loss in self.losses if reached <= samples]
        self.curve = [point for point in self.curve if point["samples"] <= samples]

    def _count_samples(self, body: dict[str, Any]) -> int:
        before = [self.samples] + [int(point["samples"]) for point in self.curve[-1:]]
        return max([int(body["samples"]), *before]) if self._job.leases_batches else int(body["samples"])
