"""Tasks of `cutset bench plan --measure`, for kinds of nets of which no bundled task has a fitting size.

They learn from synthetic data. Shapes: b batch, t time steps or tokens, c channels or features.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....models.readers.synthetic import synthetic_images
from ....models.task import Task, make_example_batches
from ....models.tasks.locally_connected import LocallyConnected2d

CLASSES = 10


def _make_task(name: str, shape: tuple[int, ...], model: type[nn.Module], sizes: Sequence[int], batch: int) -> Task:
    return Task(
        name=name,
        model=lambda: model(*sizes),
        loss=F.cross_entropy,
        example=make_example_batches((shape,), classes=CLASSES),
        data=synthetic_images(shape, CLASSES),
        batch=batch,
    )


def mlp(width: int = 1024, layers: int = 3, batch: int = 128) -> Task:
    """Return a task of fully connected layers of one width."""
    return _make_task("mlp", (width,), _Perceptron, (width, layers), batch)


class _Perceptron(nn.Sequential):
    def __init__(self, width: int, layers: int) -> None:
        widths = [width] * (layers + 1)
        hidden = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
        super().__init__(*hidden, nn.Linear(width, CLASSES))


def convnet(channels: int = 32, size: int = 24, batch: int = 32) -> Task:
    """Return a task of two convolutions of 5 x 5, pooling after each, and a linear layer."""
    return _make_task("convnet", (3, size, size), _ConvNet, (channels, size), batch)


class _ConvNet(nn.Sequential):
    def __init__(self, channels: int, size: int) -> None:
        super().__init__(
            nn.Conv2d(3, channels, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * channels * (size // 4) ** 2, CLASSES),
        )


def local_net(channels: int = 8, size: int = 24, batch: int = 32) -> Task:
    """Return a task of two locally connected layers of 3 x 3 filters, and a linear layer."""
    return _make_task("local_net", (1, size, size), _LocalNet, (channels, size), batch)


class _LocalNet(nn.Sequential):
    def __init__(self, channels: int, size: int) -> None:
        super().__init__(
            LocallyConnected2d(1, channels, size=(size, size), kernel=3),
            nn.ReLU(),
            LocallyConnected2d(channels, channels, size=(size - 2, size - 2), kernel=3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(channels * (size - 4) ** 2, CLASSES),
        )


def recurrent(kind: str = "LSTM", layers: int = 2, width: int = 256, length: int = 24, batch: int = 32) -> Task:
    """Return a task of recurrent layers of one kind, LSTM or GRU, and a linear layer on the last time step."""
    shape = (length, width)
    return Task(
        name=kind.lower(),
        model=lambda: _RecurrentNet(kind, layers, width),
        loss=F.cross_entropy,
        example=make_example_batches((shape,), classes=CLASSES),
        data=synthetic_images(shape, CLASSES),
        batch=batch,
    )


class _RecurrentNet(nn.Module):
    def __init__(self, kind: str, layers: int, width: int) -> None:
        super().__init__()
        self.layers = {"LSTM": nn.LSTM, "GRU": nn.GRU}[kind](width, width, layers, batch_first=True)
        self.last = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.layers(x)
        scores: Tensor = self.last(outputs[:, -1])
        return scores


def mixture(width: int = 256, experts: int = 4, batch: int = 512) -> Task:
    """Return a task of a mixture of experts, to two of which each sample goes, between linear layers."""
    return _make_task("mixture", (width,), _MixtureNet, (width, experts), batch)


class _MixtureNet(nn.Module):
    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.first, self.gate, self.last = nn.Linear(width, width), nn.Linear(width, experts), nn.Linear(width, CLASSES)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == number)
            out = out.index_add(0, rows, expert(x[rows]) * weights[rows, places, None])
        scores: Tensor = self.last(x + out)
        return scores
