"""A net whose first layer has bfloat16 parameters, and whose second has float32 ones."""

import torch
from torch import Tensor, nn

from cutset import Data, Task


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 16).bfloat16(), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x.bfloat16()).relu().float())


def points(split: str) -> Data:
    count, seed = (480, 0) if split == "train" else (80, 1)
    inputs = torch.randn(count, 12, generator=torch.Generator().manual_seed(seed))
    return Data((inputs,), (inputs[:, :4].argmax(1),))


def halves() -> Task:
    return Task("halves", Halves, nn.functional.cross_entropy, data=points, batch=20)
