"""A model that counts: with plain SGD of rate 1 its weight [n] ends as how often each sample was trained on."""

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from cutset.models.task import Data, Task

BATCH, STEP_S = 4, 0.002


class Counts(nn.Module):
    """Gives the weights at some numbers, [batch]; takes as long as a small model does."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count))

    def forward(self, numbers: Tensor) -> Tensor:
        time.sleep(STEP_S)
        return self.weight[numbers]


def negative_sum(weights: Tensor) -> Tensor:
    return -weights.mean() * weights.numel()


def make(count: int, train: Any) -> Task:
    tests = Data((torch.arange(BATCH),))
    return Task(
        "counting",
        lambda: Counts(count),
        negative_sum,
        data=lambda split: train if split == "train" else tests,
        correct=None,
        unpack=lambda batch: Data((batch,)),
        batch=BATCH,
    )


class Numbers(Dataset[int]):
    """The numbers themselves."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        return number


def numbered(count: int) -> Task:
    return make(count, Data((torch.arange(count),)))


def read(count: int) -> Task:
    return make(count, Numbers(count))
