"""A task whose every push is 1: what is trained tells how many pushes were applied, to the last one."""

from functools import partial

import torch
from torch import Tensor, nn

from cutset.models.task import Data, Task, make_example_batches

FEATURES, CLASSES, SAMPLES, BATCH = 8, 3, 96, 8


class Counts(nn.Module):
    """Three matrices, so that three shards have one each, which begin with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.zeros(FEATURES, CLASSES, dtype=torch.float64) for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.parts[0] + inputs @ self.parts[1] + inputs @ self.parts[2]


def mean_of_sums(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.sum() / outputs.shape[0]


def ones(split: str) -> Data:
    return Data((torch.ones(SAMPLES, FEATURES, dtype=torch.float64),), (torch.zeros(SAMPLES, dtype=torch.int64),))


def task() -> Task:
    example = make_example_batches(((FEATURES,),), classes=CLASSES, dtype=torch.float64)
    return Task("counts", Counts, mean_of_sums, example, partial(ones), batch=BATCH)
