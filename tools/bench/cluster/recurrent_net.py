"""The task `recurrent`: a deep recurrent net, which no cut makes faster in lock-step.

A recurrent layer is one operator that cannot be divided, and each needs the output of the one before: machines that
have different layers wait for each other. With micro-batches they compute at once.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from ....models.readers.synthetic import synthetic_images
from ....models.task import Task, make_example_batches

CLASSES = 16


def recurrent(layers: int = 8, width: int = 192, length: int = 12, batch: int = 32) -> Task:
    """Return a task of layers of gated recurrent units over sequences of one length; the data are synthetic."""
    return Task(
        name="recurrent",
        model=lambda: RecurrentNet(layers, width),
        loss=F.cross_entropy,
        example=make_example_batches(((length, width),), classes=CLASSES),
        data=synthetic_images((length, width), CLASSES),
        batch=batch,
    )


class RecurrentNet(nn.Module):
    """Layers of gated recurrent units and a classifier: [b, length, width] -> [b, CLASSES]."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.GRU(width, width, batch_first=True) for _ in range(layers))
        self.last = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x, _ = layer(x)
        scores: Tensor = self.last(x[:, -1])
        return scores
