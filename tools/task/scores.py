"""How well a model does on samples: loss, accuracy and the task's metrics, of a model that is cut or is not.

The batches of a split stream through the machines of a cut model; the one with the output measures. The last batch of
a cut model is filled up with the last sample, and what is measured are the samples that there are. Where an output may
have no row for each sample that depends on no other, as a loss that the model computes itself, and where the model is
not cut, the last batch is computed as short as it is.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch
from torch import Tensor

from ...models.metrics import CollectingMetric
from ...models.task import Data, Task, TaskError, count_correct_classes
from ...partition.ir.autocast import autocast_context
from ...partition.ir.box import Box
from ...partition.ir.pytree import first_tensor, flatten
from ...runtime.replica.sized_workers import SizedWorkers
from ...runtime.worker.uncut_worker import UncutWorker
from ...runtime.worker.worker import Worker
from ..blame import blame
from ..samples.dataset_samples import Samples

MEAN = "return one number, the mean over the batch"  # what a metric that is a function does


class Scores(msgspec.Struct, frozen=True):
    """What was measured on `samples` samples.

    loss: the mean, None where it cannot be computed in evaluation mode. correct: answers, None where the task counts
    none. metrics: the task's, by name.
    """

    samples: int
    loss: float | None
    correct: int | None
    metrics: dict[str, float] = {}

    @property
    def accuracy(self) -> float | None:
        """The fraction of correct answers."""
        return None if self.correct is None else self.correct / self.samples

    def to_point(self) -> dict[str, Any]:
        """Return what a point of a learning curve has of it."""
        return {"test_loss": self.loss, "test_accuracy": self.accuracy, "metrics": self.metrics}


class Scorer:
    """Collects the scores of a task batch by batch. autocast: the dtype in which torch.autocast computes the loss.

    failure: why there is no loss, "" where there is one.
    """

    def __init__(self, task: Task, *, autocast: str = "") -> None:
        self._task, self._autocast = task, autocast
        self._samples, self._losses, self._correct = 0, 0.0, 0
        self._counts_correct = task.correct is not None
        self._sums = dict.fromkeys((name for name, one in task.metrics.items() if not _collects(one)), 0.0)
        self.failure = ""
        for name, metric in task.metrics.items():
            if isinstance(metric, CollectingMetric):
                with self._blame_metric(name):
                    metric.reset()

    @torch.no_grad()
    def add(self, outputs: Any, targets: tuple[Tensor, ...], *, size: int, count: int) -> None:
        """Take in what the model gives for a batch. size: of the batch; count: of samples that were not filled up.

        Where some were, the outputs have samples along their first dimension.
        """
        if count < size:
            leaves, rebuild = flatten(outputs)
            outputs = rebuild([leaf[:count] if isinstance(leaf, Tensor) else leaf for leaf in leaves])
            targets = tuple(target[:count] for target in targets)
        first = first_tensor(outputs)
        if first is not None and self._counts_correct:
            self._count_correct(first, targets, count)
        self._samples += count
        self._add_loss(outputs, targets, count)
        for name, metric in self._task.metrics.items():
            with self._blame_metric(name):
                if isinstance(metric, CollectingMetric):
                    metric.update(outputs, *targets)
                else:
                    self._sums[name] += self._demand_number(name, metric(outputs, *targets), MEAN) * count

    def finish(self) -> Scores:
        """Return the scores of all batches."""
        metrics = {}
        for name, metric in self._task.metrics.items():
            with self._blame_metric(name):
                if isinstance(metric, CollectingMetric):
                    metrics[name] = self._demand_number(name, metric.compute(), "let compute() return one number")
                else:
                    metrics[name] = self._sums[name] / self._samples
        loss = None if self.failure else self._losses / self._samples
        return Scores(self._samples, loss, self._correct if self._counts_correct else None, metrics)

    def _count_correct(self, first: Tensor, targets: tuple[Tensor, ...], count: int) -> None:
        correct = self._task.correct
        assert correct is not None
        if correct is count_correct_classes:
            try:
                self._correct += correct(first, *targets)
            except TaskError:  # no classification
                self._counts_correct = False
            return
        fix = "give the task correct=..., which counts the right answers among outputs and targets, or correct=None"
        what = f"correct of task {self._task.name} for an output of shape {tuple(first.shape)}"
        with blame("E315", what, fix=fix):
            found = float(correct(first, *targets))
            if not found.is_integer() or not 0 <= found <= count:
                raise TaskError(f"{what} counts {found:g} right answers of {count}", fix=fix)
        self._correct += int(found)

    def _add_loss(self, outputs: Any, targets: tuple[Tensor, ...], count: int) -> None:
        if self.failure:
            return
        try:
            with autocast_context(self._autocast):
                self._losses += float(self._task.loss(outputs, *targets)) * count
        except Exception as error:  # the user's loss may want what the model gives in training mode only
            if self._samples > count:  # not so: another batch had a loss, and something is wrong with this one
                with blame("E315", f"the loss of task {self._task.name} on some test samples"):
                    raise
            self.failure = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"

    def _demand_number(self, name: str, value: Any, fix: str) -> float:
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:  # the last of torch, for a tensor of several elements
            form = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            facts = f"metric {name!r} of task {self._task.name} gives {form}"
            raise TaskError(facts, fix=fix) from error

    def _blame_metric(self, name: str) -> Any:
        fix = "correct it there; it gets what the loss gets: outputs and targets of a batch"
        return blame("E315", f"metric {name!r} of task {self._task.name}", fix=fix)


def score(workers: SizedWorkers, task: Task, data: Samples, step: int, *, autocast: str = "") -> Scores | None:
    """Return the scores of a cut model on samples; None where another machine has the output.

    All machines of the replica must call it with the same data and the same `step`, which is a new one at every call.
    """
    size, scorer, has_output = workers.first.program.batch, Scorer(task, autocast=autocast), False
    under_way = deque[tuple[Data, int]]()  # batches whose output is to come, with the samples that were not filled up

    def feed() -> Iterator[Data]:
        for start in range(0, len(data), size):
            count = min(size, len(data) - start)
            batch = data.rows(torch.arange(start, start + count))
            if count < size and not workers.has_program(batch):
                batch = data.rows(torch.arange(start, start + size).clamp(max=len(data) - 1))
            under_way.append((batch, count))
            yield batch

    for worker, pieces in workers.stream(feed(), step):
        batch, count = under_way.popleft()
        if pieces:
            has_output = True
            scorer.add(_build_output(worker, pieces), batch.targets, size=len(batch), count=count)
    return scorer.finish() if has_output else None


def score_uncut(worker: UncutWorker, task: Task, data: Samples, size: int) -> Scores:
    """Return the scores of an uncut model on samples, in batches of `size`."""
    scorer = Scorer(task, autocast=worker.autocast)
    for start in range(0, len(data), size):
        batch = data.rows(torch.arange(start, min(start + size, len(data))))
        scorer.add(worker.predict(batch), batch.targets, size=len(batch), count=len(batch))
    return scorer.finish()


def _build_output(worker: Worker, pieces: list[tuple[Box, Tensor]]) -> Any:
    """Return the output, whose tensors are collected whole on one machine."""
    program = worker.program
    tensors = [
        output.reshape(program.tensors[program.pieces[result].tensor].local_shape(box))
        for result, (box, output) in zip(program.results, pieces, strict=True)
    ]
    return tensors[0] if program.output is None else program.output.build(tensors)


def _collects(metric: Callable[..., Any] | CollectingMetric) -> bool:
    return isinstance(metric, CollectingMetric)
