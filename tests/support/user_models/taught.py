"""A net beside a teacher, which is cut off by `detach`, and a layer that nothing reads."""

import torch
from torch import Tensor, nn

from cutset import Data, Task


class Taught(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.teacher, self.unused = nn.Linear(12, 4), nn.Linear(12, 4), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) + 0.1 * self.teacher(x).detach()


def points(split: str) -> Data:
    count, seed = (480, 0) if split == "train" else (80, 1)
    inputs = torch.randn(count, 12, generator=torch.Generator().manual_seed(seed))
    return Data((inputs,), (inputs[:, :4].argmax(1),))


def taught() -> Task:
    return Task("taught", Taught, nn.functional.cross_entropy, data=points, batch=20)
