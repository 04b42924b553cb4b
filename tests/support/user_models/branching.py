"""Models that no trace can follow: they branch on values. Small, so that tests are quick."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cutset.models.task import Data, Task, make_example_batches

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
        make_example_batches(((FEATURES,),), classes=CLASSES, dtype=dtype),
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
    return make(Branching, leaf_modules=("layers.*.1",))


class Rows(nn.Module):
    """Gives as many rows as data says."""

    def forward(self, x: Tensor) -> Tensor:
        return x[x[:, 0] > 0]


class Picked(nn.Module):
    """Holds such a module, and gives what does not depend on data."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.mix = Rows(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.rows(x)
        return self.mix(x) + chosen.sum(0)


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Signs(nn.Module):
    """Has a backward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return Sign.apply(x)  # type: ignore[no-any-return,no-untyped-call]


class Assigns(nn.Module):
    """Assigns its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


class ByNumpy(nn.Module):
    """Looks at its data by way of numpy."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1.0 if x.detach().numpy().any() else 0.5)


class Hooked(nn.Module):
    """Hooks the gradient of its input."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient / 2)
        return x


class RealOnly(nn.Module):
    """Works with its buffer as it is initialised only."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        assert self.order.tolist() == list(range(WIDTH))
        return x[:, self.order]


def chain(*kinds: Callable[[], nn.Module]) -> Callable[[], Task]:
    """A task whose model has these modules between two linear ones."""
    return lambda: make(
        lambda: nn.Sequential(nn.Linear(FEATURES, WIDTH), *(kind() for kind in kinds), nn.Linear(WIDTH, CLASSES))
    )


gate, gates = chain(partial(Gate, WIDTH)), chain(*[partial(Gate, WIDTH)] * 2)
picked, signs = chain(Picked), chain(Signs)
assigns, by_numpy, hooked, real_only = chain(Assigns), chain(ByNumpy), chain(Hooked), chain(RealOnly)
rows = chain(Rows)
several = chain(Assigns, Signs, partial(Gate, WIDTH), Picked, ByNumpy, Hooked, RealOnly)


class Root(nn.Module):
    """Branches by itself, so that no block helps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x if x.sum() > 0 else -x


def root() -> Task:
    return make(Root)


def recurrent() -> Task:
    return make(lambda: nn.LSTM(FEATURES, CLASSES))


class KeepsPlain(nn.Module):
    """Keeps tensors in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scales = nn.Linear(FEATURES, CLASSES), [torch.ones(CLASSES), torch.rand(CLASSES)]

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x * self.scales[int(x.sum() > 0)]


def keeps_plain() -> Task:
    return make(KeepsPlain, torch.float32)
