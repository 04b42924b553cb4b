"""`Verdicts`: what workers are told after an evaluation - keep these weights, go on or end.

Messages of a worker, and the reply, both about the step after which there was an evaluation:

  await_verdict  {}    "verdict" {is_best, must_stop}, once replica 0 has told its scores
  best_saved     {file}  no reply: a machine of replica 0 has written the weights that were the best

All machines of replica 0 ask. Where replicas take turns, all others ask, too, so that all end after the same step.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...runtime.channel.message import Message
from ..config.monitor import Judgement
from ..job.job import Job
from .best_weights import BestWeights


class Verdicts:
    """The verdicts of one run.

    stop_requested: whether the user wants it to end, whatever the scores say. on_stop: called once with the step after
    which the replicas are told to end. on_notice: called with a sentence where the best weights cannot be kept.
    """

    def __init__(
        self,
        job: Job,
        *,
        stop_requested: Callable[[], bool],
        on_stop: Callable[[int], object],
        on_notice: Callable[[str], object],
    ) -> None:
        self._monitor, self._stop_requested, self._on_stop = job.training.monitor, stop_requested, on_stop
        self._best = BestWeights(job, on_notice=on_notice)
        self._may_end_at_once = job.method.leases_batches
        self._unjudged: list[int] = []  # steps with an evaluation
        self._judged: dict[int, Judgement] = {}  # by step
        self._asking: list[tuple[str, int]] = []  # workers and steps
        self._stopped = False

    def handle(self, message: Message) -> None:
        """Take a message of a worker into account."""
        self._best.handle(message)
        if message.kind == "evaluated":
            self._unjudged.append(message.step)
        elif message.kind == "await_verdict":
            self._asking.append((message.sender, message.step))

    def heed_request(self) -> None:
        """End the training if the user wants that, and replicas need not end together."""
        if self._may_end_at_once and not self._stopped and self._stop_requested():
            self._stopped = True
            self._on_stop(0)

    def forget(self, sender: str) -> None:
        """Note that a worker is lost: it waits no more, and what it was about to write is nobody's."""
        self._best.interrupt()
        self._asking = [(name, step) for name, step in self._asking if name != sender]

    def go_back(self) -> None:
        """Forget all, as all roles go back; what is to come is judged again."""
        self._best.interrupt()
        for records in (self._unjudged, self._judged, self._asking):
            records.clear()
        self._stopped = False

    def take_replies(self, curve: Sequence[Mapping[str, Any]]) -> list[tuple[str, Message]]:
        """Return the verdicts that can be given now, by names of workers. curve: ends with the last evaluation.

        An evaluation is judged when the best weights of the one before are written; replica 0 waits for that.
        """
        while self._unjudged and not self._best.is_pending:
            self._judge(self._unjudged.pop(0), curve)
        ready = [(name, step) for name, step in self._asking if step in self._judged]
        self._asking = [one for one in self._asking if one not in ready]
        return [(name, Message("verdict", step, body=self._judged[step]._asdict())) for name, step in ready]

    def _judge(self, step: int, curve: Sequence[Mapping[str, Any]]) -> None:
        judged = Judgement(False, False) if self._monitor is None else self._monitor.judge(curve)
        if self._monitor is not None and judged.is_best:
            self._best.expect(self._monitor, curve[-1])
        if not self._stopped and (judged.must_stop or self._stop_requested()):
            self._stopped = True
            self._on_stop(step)
        self._judged[step] = Judgement(judged.is_best, self._stopped)

    def __repr__(self) -> str:
        return f"Verdicts({self._monitor}, judged={self._judged}, {len(self._asking)} workers wait)"
