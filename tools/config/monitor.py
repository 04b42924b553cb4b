"""`Monitor`: the score by which the weights of a run are compared, so that the best stay and training ends in time."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ...errors import UsageError

if TYPE_CHECKING:
    from ...models.metrics import Metric

LOSS, ACCURACY = "test_loss", "test_accuracy"
_DIRECTIONS = {"min:": False, "max:": True}


class Judgement(NamedTuple):
    """What follows from an evaluation: whether its weights are the best so far, and whether training shall end."""

    is_best: bool
    must_stop: bool


class Monitor(msgspec.Struct, frozen=True):
    """Compares evaluations by one score.

    score: "test_loss", "test_accuracy" or the name of a metric. more_is_better: as for accuracy. patience: evaluations
    without a better one after which training ends (Prechelt, "Early Stopping - But When?", 1998, class UP with strips
    of one evaluation and the best instead of the last one); 0 for never. before: the best value of the run that this
    one resumes, if there was one.
    """

    score: str = LOSS
    more_is_better: bool = False
    patience: int = 0
    before: float | None = None

    def read(self, point: Mapping[str, Any]) -> float | None:
        """Return the score of a point of a learning curve; None where it has none, or one that is no number."""
        value = point[self.score] if self.score in (LOSS, ACCURACY) else point["metrics"].get(self.score)
        return None if value is None or math.isnan(value) else float(value)

    def judge(self, curve: Sequence[Mapping[str, Any]]) -> Judgement:
        """Judge the last point of a learning curve by those before it; of equal ones the first is the best."""
        best, since = self.before, 0
        for point in curve:
            value = self.read(point)
            is_better = value is not None and (best is None or self._is_better(value, best))
            best, since = (value, 0) if is_better else (best, since + 1)
        return Judgement(bool(curve) and not since, bool(self.patience) and since >= self.patience)

    def find_best(self, curve: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """Return the point with the best score; None where there is none, or none better than before."""
        for end in range(len(curve), 0, -1):
            if self.judge(curve[:end]).is_best:
                return curve[end - 1]
        return None

    def _is_better(self, value: float, best: float) -> bool:
        return value > best if self.more_is_better else value < best


def choose_monitor(
    choice: str | None, patience: int | None, metrics: "Mapping[str, Metric]", *, counts_correct: bool, has_loss: bool
) -> Monitor | None:
    """Return the monitor of a run; None where nothing is asked for. UsageError where there is no such score.

    choice: "test_loss", "test_accuracy" or the name of one of the task's `metrics`, with "min:" or "max:" before it
    where a metric does not say itself, by `higher_is_better`, which values are good.
    """
    if choice is None and patience is None:
        return None
    text = choice or LOSS
    prefix = text[:4] if text[:4] in _DIRECTIONS else ""
    name = text.removeprefix(prefix)
    there = [*([LOSS] if has_loss else []), *([ACCURACY] if counts_correct else []), *metrics]
    if name not in there:
        facts = f"{_flag(choice)}: the task has no score {name!r}; it has {', '.join(there) or 'none'}"
        raise UsageError("E236", facts, fix=f"--monitor {there[0]}" if there else "give the task metrics={...}")
    more = _DIRECTIONS[prefix] if prefix else _know_direction(name, metrics.get(name))
    if more is None:
        facts = f"--monitor {name}: the metric does not say by higher_is_better whether more is better"
        raise UsageError("E236", facts, fix=f"--monitor max:{name}, or min:{name}")
    return Monitor(name, more, patience or 0)


def _flag(choice: str | None) -> str:
    return "--patience without --monitor" if choice is None else f"--monitor {choice}"


def _know_direction(name: str, metric: Any) -> bool | None:
    if name in (LOSS, ACCURACY):
        return name == ACCURACY
    known = getattr(metric, "higher_is_better", None)
    return known if isinstance(known, bool) else None
