"""Steps of 90 % of the way to 0: where they are taken late, by several replicas, the weight never gets there."""

import time

import torch
from torch import Tensor, nn

from cutset.models.task import Data, Task

RATE = 0.45  # for a step of 90 %
STEP_S = 0.01


class Slow(nn.Module):
    """Computes for so long that the steps of all replicas overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            time.sleep(STEP_S)
        return x * self.weight


def signs(split: str) -> Data:
    count = 2400 if split == "train" else 16
    return Data((torch.ones(count, 1) - 2 * (torch.arange(count) % 2).view(-1, 1),), (torch.zeros(count, 1),))


def task() -> Task:
    return Task(
        "delayed",
        lambda: nn.Sequential(Slow()),
        nn.functional.mse_loss,
        lambda batch: Data((torch.ones(batch, 1),), (torch.zeros(batch, 1),)),
        signs,
        correct=lambda output, target: int(((output - target).abs() < 0.1).sum()),
        batch=8,
        leaf_modules=("0",),
    )
