"""How many answers of a cut model are right: the batches of a split stream through its machines, several at a time."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ...models.task import Data, Task
from ...partition.ir.box import Box
from ...runtime.worker.uncut_worker import PlainWorker
from ...runtime.worker.worker import Worker


def batches(data: Data, size: int) -> Iterator[Data]:
    """All samples in batches of `size`, the last filled up with the last sample."""
    for start in range(0, len(data), size):
        yield data.rows(torch.arange(start, start + size).clamp(max=len(data) - 1))


def right_answers(worker: Worker, task: Task, data: Data, step: int) -> int | None:
    """Right answers among the samples; None where another machine has the output.

    All machines of the replica must call it with the same data and `step`, which is another at every call.
    """
    size, right, found = worker.program.batch, 0, False
    for number, pieces in enumerate(worker.stream(batches(data, size), step)):
        if pieces:
            found = True
            right += _right(task, data, number * size, _output(worker, pieces))
    return right if found else None


def right_answers_uncut(worker: PlainWorker, task: Task, data: Data, size: int) -> int:
    """The same of an uncut model, in batches of `size`."""
    outputs = map(worker.predict, batches(data, size))
    return sum(_right(task, data, number * size, output) for number, output in enumerate(outputs))


def _right(task: Task, data: Data, start: int, output: Tensor) -> int:
    """Right answers in the batch that begins with sample `start`."""
    targets = tuple(t[start : start + len(output)] for t in data.targets)
    return int(task.correct(output[: len(data) - start], *targets))


def _output(worker: Worker, pieces: list[tuple[Box, Tensor]]) -> Tensor:
    """The output, which is collected whole on one machine."""
    ((box, output),) = pieces
    program = worker.program
    return output.reshape(program.tensors[program.pieces[program.results[0]].tensor].local_shape(box))
