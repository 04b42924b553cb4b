"""How many answers of a model are correct; the batches of a split stream through the machines of a cut model."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ...models.task import Data, Task
from ...partition.ir.box import Box
from ...runtime.worker.uncut_worker import UncutWorker
from ...runtime.worker.worker import Worker


def iterate_batches(data: Data, size: int) -> Iterator[Data]:
    """Yield all samples in batches of `size`; the last batch is filled up with the last sample."""
    for start in range(0, len(data), size):
        yield data.rows(torch.arange(start, start + size).clamp(max=len(data) - 1))


def count_correct(worker: Worker, task: Task, data: Data, step: int) -> int | None:
    """Return the number of correct answers among the samples; None where another machine has the output.

    All machines of the replica must call it with the same data and the same `step`, which is a new one at every call.
    """
    size, correct, has_output = worker.program.batch, 0, False
    for number, pieces in enumerate(worker.stream(iterate_batches(data, size), step)):
        if pieces:
            has_output = True
            correct += _count_in_batch(task, data, number * size, _join_output(worker, pieces))
    return correct if has_output else None


def count_correct_uncut(worker: UncutWorker, task: Task, data: Data, size: int) -> int:
    """Return the number of correct answers of an uncut model among the samples, in batches of `size`."""
    outputs = map(worker.predict, iterate_batches(data, size))
    return sum(_count_in_batch(task, data, number * size, output) for number, output in enumerate(outputs))


def _count_in_batch(task: Task, data: Data, start: int, output: Tensor) -> int:
    """Return the number of correct answers in the batch that begins with sample `start`."""
    targets = tuple(t[start : start + len(output)] for t in data.targets)
    return int(task.correct(output[: len(data) - start], *targets))


def _join_output(worker: Worker, pieces: list[tuple[Box, Tensor]]) -> Tensor:
    """Return the output, which is collected whole on one machine."""
    ((box, output),) = pieces
    program = worker.program
    return output.reshape(program.tensors[program.pieces[program.results[0]].tensor].local_shape(box))
