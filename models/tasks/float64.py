"""The same task in float64, for batch methods that go on where float32 ends."""

from dataclasses import replace

import torch
from torch import nn

from ..task import Data, Task


def in_double(task: Task) -> Task:
    """Model, example and data with every float32 tensor in float64."""
    read = task.data
    return replace(
        task,
        model=lambda: task.model().double(),
        example=lambda batch: _wider(task.example(batch)),
        data=None if read is None else lambda split: _wider(read(split)),
    )


def zeros(linear: nn.Linear) -> nn.Linear:
    """A linear layer that begins at zero, from where a convex loss goes down the same way in every run."""
    for parameter in linear.parameters():
        nn.init.zeros_(parameter)
    return linear


def _wider(data: Data) -> Data:
    inputs, targets = (
        tuple(t.double() if t.dtype == torch.float32 else t for t in part) for part in (data.inputs, data.targets)
    )
    return Data(inputs, targets)
