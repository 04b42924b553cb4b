"""`Verdicts`: what workers are told after an evaluation - keep these weights, go on or end.

Messages of a worker, and the reply, both about the step after which there was an evaluation:

  await_verdict  {due}   "verdict" {is_best, must_stop}, once replica 0 has told its scores
  best_saved     {file}  no reply: a machine of replica 0 has written the weights that were the best

All machines of replica 0 ask. Where replicas take turns, all others ask, too, so that all end after the same step. Of
replicas that may leave steps out, as those with backups, one may ask after another step than that of the evaluation; so
the others say since which step it was due.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ...runtime.channel.message import Message
from ..config.monitor import Judgement
from ..job.job import Job
from .best_weights import BestWeights


class _Question(NamedTuple):
    """A worker waits for a verdict after a step. due: since which step; None where its own replica evaluates."""

    sender: str
    step: int
    due: int | None

    def find_evaluation(self, steps: Collection[int]) -> int | None:
        """Return which of the steps with an evaluation it asks about; None where there was none yet."""
        if self.due is None:
            return self.step if self.step in steps else None
        return min((step for step in steps if step >= self.due), default=None)


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
        self._asking: list[_Question] = []
        self._stopped = False

    def handle(self, message: Message) -> None:
        """Take a message of a worker into account."""
        self._best.handle(message)
        if message.kind == "evaluated":
            self._unjudged.append(message.step)
        elif message.kind == "await_verdict":
            self._asking.append(_Question(message.sender, message.step, message.body.get("due")))

    def heed_request(self) -> None:
        """End the training if the user wants that, and replicas need not end together."""
        if self._may_end_at_once and not self._stopped and self._stop_requested():
            self._stopped = True
            self._on_stop(0)

    def forget(self, sender: str) -> None:
        """Note that a worker is lost: it waits no more, and what it was about to write is nobody's."""
        self._best.interrupt()
        self._asking = [one for one in self._asking if one.sender != sender]

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
        asking, self._asking, replies = self._asking, [], list[tuple[str, Message]]()
        for one in asking:
            step = one.find_evaluation(self._judged)
            if step is None:
                self._asking.append(one)
            else:
                replies.append((one.sender, Message("verdict", one.step, body=self._judged[step]._asdict())))
        return replies

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
