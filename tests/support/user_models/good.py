"""What a user might bring and what works: tasks, modules, classes and instances. Small, so that tests are quick."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cutset.models.task import Data, Task, make_example_batches

FEATURES, CLASSES, TRAIN, TEST = 8, 3, 96, 50


def clouds(split: str, dtype: torch.dtype = torch.float32) -> Data:
    """Three clouds of points, which a line can tell apart."""
    generator = torch.Generator().manual_seed(1 if split == "train" else 2)
    labels = torch.randint(CLASSES, (TRAIN if split == "train" else TEST,), generator=generator)
    noise = torch.randn(len(labels), FEATURES, generator=generator, dtype=dtype)
    return Data((noise + 3 * nn.functional.one_hot(labels, FEATURES),), (labels,))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def make(model: Callable[[], nn.Module] = mlp, dtype: torch.dtype = torch.float32, **more: Any) -> Task:
    return Task(
        "clouds",
        lambda: model().to(dtype),
        more.pop("loss", nn.functional.cross_entropy),
        make_example_batches(((FEATURES,),), classes=CLASSES, dtype=dtype),
        more.pop("data", partial(clouds, dtype=dtype)),
        batch=8,
        **more,
    )


def task() -> Task:
    return make()


def slow() -> Task:
    """Wants half the rate that optimizers have."""
    return make(rate_scale=0.5)


def talks() -> Task:
    """Prints where nobody expects it."""
    print("let me tell you about clouds")  # noqa: T201
    return make()


def exact() -> Task:
    return make(dtype=torch.float64)


def planned_only() -> Task:
    return make(data=None)


def from_disk(data: str = "clouds:here") -> Task:
    """Takes the data option, as a task that reads a folder does."""
    assert data == "clouds:here"
    return make()


def module() -> nn.Module:
    return mlp()


def module_from_disk(data: str = "none:0") -> nn.Module:
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
            return self.last(torch.relu(x))
        return self.last(torch.tanh(x))


class Mixed(nn.Module):
    """Running statistics, dropout, frozen, tied and unused tensors: what the shards hold, and what they do not."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((FEATURES,), 0.5), requires_grad=False)
        self.first, self.norm = nn.Linear(FEATURES, FEATURES), nn.BatchNorm1d(FEATURES)
        self.second = nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight
        self.drop, self.last = nn.Dropout(0.1), nn.Linear(FEATURES, CLASSES)
        self.spare = nn.Linear(2, 2)
        self.register_buffer("shift", torch.full((CLASSES,), 0.25))  # for evaluation alone
        self.register_buffer("passing", torch.ones(CLASSES), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x * self.scale)))
        x = self.last(self.drop(self.second(x))) * self.passing
        return x if self.training else x + self.shift


class Looks(nn.Module):
    """Looks at its data by way of numpy, which no trace can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (1.0 if x.detach().numpy().any() else 0.5)


def gated() -> Task:
    return make(Gated)


def mixed() -> Task:
    return make(Mixed, torch.float64)


def looks() -> Task:
    return make(Looks)


instance = make()
module_instance = Net()
