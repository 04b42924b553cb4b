"""`TrainingLog`: how training goes in one process, told to the launcher: progress, tests, seconds and traffic."""

import time
from collections import deque
from collections.abc import Callable
from statistics import median

from ..runtime.assignment import LAUNCHER
from ..runtime.beacon import Beacon
from ..runtime.channel import Channel
from ..runtime.message import Message
from .course import Course

REPORT_S = 0.2  # between two progress messages of a worker
_STEP = "step "
_STEPS_TIMED = 1000  # the last ones

Traffic = dict[str, dict[str, int]]  # counts by peer, as Channel.statistics gives them


def steps_done(progress: int | str | None) -> int:
    """How many steps of the course a worker has done at least, by the last progress that it told."""
    return int(progress.removeprefix(_STEP)) + 1 if isinstance(progress, str) and progress.startswith(_STEP) else 0


def _plus(a: Traffic, b: Traffic, sign: int = 1) -> Traffic:
    names = {name: sorted(a.get(name, {}) | b.get(name, {})) for name in sorted(a | b)}
    return {
        peer: {count: a.get(peer, {}).get(count, 0) + sign * b.get(peer, {}).get(count, 0) for count in counts}
        for peer, counts in names.items()
    }


def _minus(a: Traffic, b: Traffic) -> Traffic:
    return _plus(a, b, -1)


class TrainingLog:
    """Tells the launcher how training goes: progress with the loss now and then, and every test.

    waited: the seconds that this process has waited for others so far.
    """

    def __init__(
        self, channel: Channel, beacon: Beacon, course: Course, waited: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.channel, self.beacon, self.course, self.waited = channel, beacon, course, waited
        self.began = self.told = time.monotonic()
        self._work_s = deque[float](maxlen=_STEPS_TIMED)
        self._step_began = self.began - waited()
        self.testing_s = 0.0
        self._before, self._tests = channel.statistics(), Traffic()
        self.losses: list[tuple[int, float]] = []
        self.curve: list[dict[str, float]] = []

    def step(self, step: int, loss: float | None) -> None:
        """A step was made; loss: None where another machine has it."""
        self.beacon.progress = f"{_STEP}{step}"
        now, last = time.monotonic(), step + 1 == self.course.steps
        self._work_s.append(now - self.waited() - self._step_began)
        self._step_began = now - self.waited()
        if loss is None:
            return
        if now - self.told >= REPORT_S or last:
            self.told = now
            self.losses.append((self._samples(step), loss))
            body = {"step": step + 1, "steps": self.course.steps, "loss": loss}
            body |= {"samples": self._samples(step), "seconds": self.seconds()}
            self.channel.send(LAUNCHER, Message("progress", step=step, body=body))

    def test(self, step: int, share: Callable[[], float | None]) -> None:
        """Test, and keep the time and the traffic of it apart from those of training."""
        seconds, before, start = self.seconds(), self.channel.statistics(), time.monotonic()
        progress, self.beacon.progress = self.beacon.progress, None  # a test may take long; this is not being stuck
        found = share()
        self.beacon.progress = progress
        self.testing_s += time.monotonic() - start
        self._tests = _plus(self._tests, _minus(self.channel.statistics(), before))
        if found is not None:
            self.curve.append({"seconds": seconds, "samples": self._samples(step), "test_accuracy": found})
            self.channel.send(LAUNCHER, Message("tested", step=step, body=dict(self.curve[-1])))
        self._step_began = time.monotonic() - self.waited()

    def step_s(self) -> float | None:
        """Median seconds of this process's own work in a step, without what it waited for others."""
        return median(self._work_s) if self._work_s else None

    def seconds(self) -> float:
        """Seconds of training so far, without the tests."""
        return time.monotonic() - self.began - self.testing_s

    def traffic(self) -> Traffic:
        """What went to and came from each peer for training: without initial values and tests."""
        return _minus(_minus(self.channel.statistics(), self._before), self._tests)

    def due(self, step: int) -> bool:
        """Whether a test follows this step; that after the last one is not counted."""
        every = self.course.evaluate_every
        return every > 0 and (step + 1) % every == 0 and step + 1 < self.course.steps

    def _samples(self, step: int) -> int:
        return (step + 1) * self.course.batch * self.course.replicas
