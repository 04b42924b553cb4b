"""Tasks in float64, for batch methods, which converge further than float32 can represent."""

from dataclasses import replace

import torch
from torch import nn

from ..task import Data, Task


def to_float64(task: Task) -> Task:
    """Return the same task with every float32 tensor of its model, example and data in float64."""
    read, example = task.data, task.example
    return replace(
        task,
        model=lambda: task.model().double(),
        example=None if example is None else lambda batch: _widen(example(batch)),
        data=None if read is None else lambda split: _widen(read(split)),
    )


def zero_weights(linear: nn.Linear) -> nn.Linear:
    """Set the weights of a linear layer to zero, so that a convex loss begins at the same point in every run."""
    for parameter in linear.parameters():
        nn.init.zeros_(parameter)
    return linear


def _widen(data: Data) -> Data:
    inputs, targets = (
        tuple(t.double() if t.dtype == torch.float32 else t for t in part) for part in (data.inputs, data.targets)
    )
    return Data(inputs, targets, data.names)
