"""Models that no trace can follow: they branch on values. Small, so that tests are quick."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cutset.models.task import Data, Task, example_like

FEATURES, CLASSES, TRAIN, TEST, WIDTH = 8, 3, 96, 50, 12


def clouds(split: str, dtype: torch.dtype = torch.float64) -> Data:
    """Three clouds of points."""
    generator = torch.Generator().manual_seed(1 if split == "train" else 2)
    labels = torch.randint(CLASSES, (TRAIN if split == "train" else TEST,), generator=generator)
    noise = torch.randn(len(labels), FEATURES, generator=generator, dtype=dtype)
    return Data((noise + 3 * nn.functional.one_hot(labels, FEATURES),), (labels,))


def make(model: Callable[[], nn.Module], dtype: torch.dtype = torch.float64, **more: Any) -> Task:
    return Task(
        "clouds",
        lambda: model().to(dtype),
        nn.functional.cross_entropy,
        example_like(((FEATURES,),), classes=CLASSES, dtype=dtype),
        partial(clouds, dtype=dtype),
        batch=8,
        **more,
    )


class Gate(nn.Module):
    """Goes one way or the other, and draws on one of them only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.norm, self.drop = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.inner(x))
        if x.mean() > 0.05:
            return x + self.drop(torch.relu(h))
        return x - torch.tanh(h)


class Branching(nn.Module):
    """Two gates in a list, dropout between them, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, WIDTH)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), Gate(WIDTH)) for _ in range(2))
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = nn.functional.dropout(layer(x), 0.1, self.training)
        return self.last(x)


def branching() -> Task:
    return make(Branching)


def with_blocks() -> Task:
    """The same, with its blocks named."""
    return make(Branching, blocks=("layers.*.1",))
