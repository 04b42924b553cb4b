"""`ProgressLog`: how training goes in one process - progress, evaluations, seconds and traffic - and its reports."""

import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any

from ...runtime.channel.channel import Channel, count_link_bytes
from ...runtime.channel.message import LAUNCHER, Message
from ...runtime.hosts.heartbeat import RoleProgress
from ..job.process_specs import TrainingSpec
from ..task.scores import Scores

REPORT_INTERVAL_S = 0.2  # between two progress messages of a worker
STATUS_S = 1.0  # between two statuses
_STEP = "step "
_TIMED_STEPS = 1000  # the last ones, of which the median is taken

Traffic = dict[str, dict[str, int]]  # counts by peer, as Channel.statistics returns them


def parse_steps_done(progress: int | str | None) -> int:
    """Return how many steps a worker has completed at least, by the last progress in its heartbeats."""
    if not isinstance(progress, str) or not progress.startswith(_STEP):
        return 0
    return int(progress.removeprefix(_STEP)) + 1


def _add_traffic(a: Traffic, b: Traffic, sign: int = 1) -> Traffic:
    names = {name: sorted(a.get(name, {}) | b.get(name, {})) for name in sorted(a | b)}
    return {
        peer: {count: a.get(peer, {}).get(count, 0) + sign * b.get(peer, {}).get(count, 0) for count in counts}
        for peer, counts in names.items()
    }


def _subtract_traffic(a: Traffic, b: Traffic) -> Traffic:
    return _add_traffic(a, b, -1)


class ProgressLog:
    """Reports progress with the loss to the launcher now and then, and every evaluation.

    Args:
        progress: what the heartbeats of this process say.
        waited: returns the seconds that this process has waited for others so far.
        describe: returns what else each report says; with it there are reports even where no loss is known.
        describe_status: returns what else the status of this process says (`RolesReport`).

    Attributes:
        steps: steps made by this process.
        losses: (samples, loss) at each report.
        curve: {"seconds", "samples", "test_loss", "test_accuracy", "metrics"} for each evaluation; see `Scores`.
    """

    def __init__(
        self,
        channel: Channel,
        progress: RoleProgress,
        training: TrainingSpec,
        waited: Callable[[], float] = lambda: 0.0,
        *,
        describe: Callable[[], dict[str, Any]] | None = None,
        describe_status: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._describe_status, self._last_status_s = describe_status, -STATUS_S
        self._loss: float | None = None
        self._channel, self._progress, self._training, self._waited = channel, progress, training, waited
        self._describe = describe
        self._start_s = time.monotonic()
        self._last_report_s = self._start_s - REPORT_INTERVAL_S  # so that the first step is reported at once
        self._work_s = deque[float](maxlen=_TIMED_STEPS)
        self._step_start_s = self._start_s - waited()
        self._evaluation_s = 0.0
        self._traffic_before, self._evaluation_traffic = channel.statistics(), Traffic()
        self._reached = 0  # batches of all replicas, about
        self._evaluated: int | None = None  # `_reached` at the last evaluation
        self.steps = 0
        self.losses: list[tuple[int, float]] = []
        self.curve: list[dict[str, Any]] = []

    def record_step(
        self, step: int, loss: float | None, *, reached: int = 0, acknowledged: int | None = None, last: bool = False
    ) -> None:
        """Record a step that was made.

        Args:
            loss: None where another machine has it.
            reached: batches that all replicas have computed; by default they have made as many steps as this one.
            acknowledged: steps whose pushes are durable on the shards, if batches are leased.
            last: no step follows for now.
        """
        self._progress.value = f"{_STEP}{step}"
        self.steps += 1
        now, last = time.monotonic(), last or step + 1 == self._training.steps
        self._reached = max(self._reached, reached or (step + 1) * self._training.replicas)
        if self._evaluated is None:
            self._evaluated = self._reached - 1
        self._work_s.append(now - self._waited() - self._step_start_s)
        self._step_start_s = now - self._waited()
        self._loss = self._loss if loss is None else loss
        if now - self._last_status_s >= STATUS_S:
            self._last_status_s = now
            links = count_link_bytes(self._channel)
            known = {"at_s": round(now, 3), "step": step, "loss": self._loss, "links": links}
            self._progress.status = known | self._describe_status()
        if loss is None and self._describe is None:
            return
        if now - self._last_report_s >= REPORT_INTERVAL_S or last:
            self._last_report_s = now
            if loss is not None:
                self.losses.append((self._samples, loss))
            body = {"step": step + 1, "steps": self._training.steps, "loss": loss}
            body |= {"samples": self._samples, "seconds": self.training_seconds()}
            body |= {} if acknowledged is None else {"acknowledged": acknowledged}
            body |= {} if self._describe is None else self._describe()
            self._channel.send(LAUNCHER, Message("progress", step=step, body=body))

    def record_evaluation(self, step: int, evaluate: Callable[[], Scores | None]) -> None:
        """Evaluate after a step, and keep its time and traffic apart from those of training.

        evaluate: returns the scores, None where another machine has it.
        """
        seconds, before, start = self.training_seconds(), self._channel.statistics(), time.monotonic()
        self._evaluated = self._reached
        # An evaluation may take long; without progress to compare, the launcher does not take it for being stuck.
        progress, self._progress.value = self._progress.value, None
        scores = evaluate()
        self._progress.value = progress
        self._evaluation_s += time.monotonic() - start
        traffic = _subtract_traffic(self._channel.statistics(), before)
        self._evaluation_traffic = _add_traffic(self._evaluation_traffic, traffic)
        if scores is not None:
            self.record_point(step, scores.to_point(), seconds=seconds)
        self._step_start_s = time.monotonic() - self._waited()

    def record_point(self, step: int, point: dict[str, Any], *, seconds: float | None = None) -> None:
        """Record scores after a step, as `Scores.to_point` has them. seconds: of training, by default until now."""
        at = self.training_seconds() if seconds is None else seconds
        self.curve.append({"seconds": at, "samples": self._samples, **point})
        self._channel.send(LAUNCHER, Message("evaluated", step=step, body=dict(self.curve[-1])))

    def median_work_s(self) -> float | None:
        """Return the median seconds of this process's own work in a step, without waiting for others."""
        return median(self._work_s) if self._work_s else None

    def training_seconds(self) -> float:
        """Return the seconds of training so far, without evaluations."""
        return time.monotonic() - self._start_s - self._evaluation_s

    def training_traffic(self) -> Traffic:
        """Return the traffic of training with each peer, without initial values and evaluations."""
        return _subtract_traffic(
            _subtract_traffic(self._channel.statistics(), self._traffic_before), self._evaluation_traffic
        )

    def is_evaluation_due(self) -> bool:
        """Return whether an evaluation follows the last step; the one after the last batch does not count.

        It does when the replicas together have passed another multiple of the batches between two evaluations.
        """
        every, reached = self._training.evaluate_every * self._training.replicas, self._reached
        if self._evaluated is None or not every or reached >= self._training.batches:
            return False
        return reached // every > self._evaluated // every

    def last_due(self, step: int) -> int:
        """Return the last step, not after this one, that an evaluation follows where no step is left out."""
        every = self._training.evaluate_every
        return (step + 1) // every * every - 1

    def skip_evaluation(self) -> None:
        """Note that another replica makes the evaluation that is due."""
        self._evaluated = self._reached

    def mark_all_trained(self, batches: int) -> None:
        """Note how many batches all replicas have computed at the end, about."""
        if not self._training.parts:  # else nobody knows better
            self._reached = batches

    @property
    def _samples(self) -> int:
        return self._reached * self._training.batch
