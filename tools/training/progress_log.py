"""`TrainingLog`: how training goes in one process, told to the launcher: progress, tests, seconds and traffic."""

import time
from collections import deque
from collections.abc import Callable
from statistics import median

from ...runtime.launcher.assignment import LAUNCHER
from ...runtime.launcher.heartbeat import Beacon
from ...runtime.channel.channel import Channel
from ...runtime.channel.message import Message
from ..job.run_config import Course

REPORT_S = 0.2  # between two progress messages of a worker
_STEP, _SETTLED = "step ", ", settled "
_STEPS_TIMED = 1000  # the last ones

Traffic = dict[str, dict[str, int]]  # counts by peer, as Channel.statistics gives them


def steps_done(progress: int | str | None) -> int:
    """How many steps of the course a worker has done at least, by the last progress that it told."""
    if not isinstance(progress, str) or not progress.startswith(_STEP):
        return 0
    return int(progress.removeprefix(_STEP).partition(_SETTLED)[0]) + 1


def steps_settled(progress: int | str | None) -> int:
    """Of how many steps the shards have all that a worker has pushed, by the last progress that it told."""
    return int(progress.partition(_SETTLED)[2] or 0) if isinstance(progress, str) else 0


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
        self.began = time.monotonic()
        self.told = self.began - REPORT_S  # so that the first step is told at once
        self._work_s = deque[float](maxlen=_STEPS_TIMED)
        self._step_began = self.began - waited()
        self.testing_s = 0.0
        self._before, self._tests = channel.statistics(), Traffic()
        self.steps = 0  # made by this process
        self._reached = 0  # batches of all replicas, about
        self._tested: int | None = None  # what was reached at the last test
        self.losses: list[tuple[int, float]] = []
        self.curve: list[dict[str, float]] = []

    def step(
        self, step: int, loss: float | None, *, reached: int = 0, settled: int | None = None, last: bool = False
    ) -> None:
        """A step was made; loss: None where another machine has it.

        reached: batches that all replicas have come to; by default they have made as many steps as this one. settled:
        steps of which the shards have all, where that is asked. last: no other follows for now.
        """
        self.beacon.progress = f"{_STEP}{step}" + ("" if settled is None else f"{_SETTLED}{settled}")
        self.steps += 1
        now, last = time.monotonic(), last or step + 1 == self.course.steps
        self._reached = max(self._reached, reached or (step + 1) * self.course.replicas)
        if self._tested is None:
            self._tested = self._reached - 1
        self._work_s.append(now - self.waited() - self._step_began)
        self._step_began = now - self.waited()
        if loss is None:
            return
        if now - self.told >= REPORT_S or last:
            self.told = now
            self.losses.append((self._samples, loss))
            body = {"step": step + 1, "steps": self.course.steps, "loss": loss}
            body |= {"samples": self._samples, "seconds": self.seconds()}
            body |= {} if settled is None else {"settled": settled}
            self.channel.send(LAUNCHER, Message("progress", step=step, body=body))

    def test(self, step: int, share: Callable[[], float | None]) -> None:
        """Test after a step, and keep the time and the traffic of it apart from those of training."""
        seconds, before, start = self.seconds(), self.channel.statistics(), time.monotonic()
        self._tested = self._reached
        progress, self.beacon.progress = self.beacon.progress, None  # a test may take long; this is not being stuck
        found = share()
        self.beacon.progress = progress
        self.testing_s += time.monotonic() - start
        self._tests = _plus(self._tests, _minus(self.channel.statistics(), before))
        if found is not None:
            self.curve.append({"seconds": seconds, "samples": self._samples, "test_accuracy": found})
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

    def due(self) -> bool:
        """Whether a test follows the step that was made; that after the last batch is not counted.

        It does when the replicas together have come to another multiple of what they compute between two tests.
        """
        every, reached = self.course.evaluate_every * self.course.replicas, self._reached
        if self._tested is None or not every or reached >= self.course.batches:
            return False
        return reached // every > self._tested // every

    def all_trained(self) -> None:
        """All replicas have done all batches."""
        self._reached = self.course.batches

    @property
    def _samples(self) -> int:
        return self._reached * self.course.batch
