"""Digits for long runs: a perceptron learns them, and each sample counts how often it was learnt from."""

import torch
from torch import Tensor, nn

from cutset.models import digits
from cutset.models.task import Data, Task
from cutset.models.tasks.digits import TRAIN_SAMPLES, mlp

BATCH = 20


class CountingNet(nn.Module):
    """The perceptron, and a number for each sample that begins at 0; its gradient is 1 wherever the sample is."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()
        self.counts = nn.Parameter(torch.zeros(TRAIN_SAMPLES))

    def forward(self, images: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(images), self.counts[numbers]


def loss(outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
    scores, counts = outputs
    return nn.functional.cross_entropy(scores, labels) + (counts - counts.detach()).sum()


def samples(split: str) -> Data:
    data = digits().data(split)  # type: ignore[misc]
    return Data((*data.inputs, torch.arange(len(data))), data.targets)


def task() -> Task:
    return Task("counted_digits", CountingNet, loss, data=samples, batch=BATCH)
