"""What a user might bring and what works: tasks, modules, classes and instances. Small, so that tests are quick."""

import torch
from torch import Tensor, nn

from cutset.models.task import Data, Task, example_like

FEATURES, CLASSES, SAMPLES = 8, 3, 96


def blobs(split: str, dtype: torch.dtype = torch.float32) -> Data:
    """Three clouds of points that a line can tell apart."""
    generator = torch.Generator().manual_seed(1 if split == "train" else 2)
    count = SAMPLES if split == "train" else 50
    labels = torch.randint(CLASSES, (count,), generator=generator)
    noise = torch.randn(count, FEATURES, generator=generator, dtype=dtype)
    return Data((noise + 3 * nn.functional.one_hot(labels, FEATURES),), (labels,))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def make(model=mlp, loss=nn.functional.cross_entropy, data=blobs, **more) -> Task:
    return Task("blobs", model, loss, example_like(((FEATURES,),), classes=CLASSES), data, **{"batch": 8, **more})


def task() -> Task:
    return make()


def planned_only() -> Task:
    return make(data=None)


def from_disk(data: str | None = None) -> Task:
    """Takes a data option, as a task that reads a folder does."""
    return make(data=blobs if data == "blobs:here" else None)


def module() -> nn.Module:
    return mlp()


def module_from_disk(data: str = "") -> nn.Module:
    """A bare module whose factory wants the data option."""
    return nn.Linear(FEATURES, int(data.rpartition(":")[2]))


class Net(nn.Module):
    """A class is a factory, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Gated(nn.Module):
    """Cannot be traced: which way it goes depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if x.sum() > 0:
            x = torch.relu(x)
        else:
            x = torch.tanh(x)
        return self.last(x)


class Mixed(nn.Module):
    """Buffers, dropout, a frozen and a tied parameter: what the shards hold and what they do not."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((FEATURES,), 0.5), requires_grad=False)
        self.first, self.norm = nn.Linear(FEATURES, FEATURES), nn.BatchNorm1d(FEATURES)
        self.second = nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight
        self.drop, self.last = nn.Dropout(0.1), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x * self.scale)))
        return self.last(self.drop(self.second(x)))


def gated() -> Task:
    return make(Gated)


def mixed() -> Task:
    return make(Mixed)


instance = make()
module_instance = Net()
