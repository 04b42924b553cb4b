"""Random small nets by seed: linear, convolutional, residual and attention blocks in random order and odd sizes.

`random_case(seed)` is a case as those of the zoo: a model that can be trained, a batch and a loss; `random_graph(seed)`
is its graph. The same seed gives the same net, in every process.
"""

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import Case

from cutset.models.task import Data
from cutset.models.tasks.locally_connected import LocallyConnected2d
from cutset.partition.capture.export import capture
from cutset.partition.ir.graph import Graph

CLASSES = 5
ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU)


def random_case(seed: int) -> Case:
    """A net with its batch. Vectors, images or tokens, by turns; dropout in some."""
    kind = (_vectors, _images, _tokens)[seed % 3]
    draw = random.Random(seed)
    model, batch = kind(draw)
    return Case(model, batch)


def random_graph(seed: int) -> Graph:
    """The training graph of the net; nothing is drawn from torch's generator that later tests would miss."""
    case = random_case(seed)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        batch = case.batch()
        return capture(case.model().train(), case.loss, batch.inputs, batch.targets)[0]


Made = tuple[Callable[[], nn.Module], Callable[[], Data]]


class Sum(nn.Module):
    """x + f(x), or f(x) + g(x)."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        out = x if len(self.branches) == 1 else torch.zeros_like(x[..., :1])
        for branch in self.branches:
            out = out + branch(x)
        return out


class Gate(nn.Module):
    """f(x) * sigmoid(g(x)), joined to x."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(width, inner), nn.Linear(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.value(x) * torch.sigmoid(self.gate(x))], -1)


class Attention(nn.Module):
    """x [b, t, heads * size]: fused projections, scaled dot products, causal or not."""

    def __init__(self, heads: int, size: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.inside, self.outside = nn.Linear(heads * size, 3 * heads * size), nn.Linear(heads * size, heads * size)

    def forward(self, x: Tensor) -> Tensor:
        parts = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.inside(x).chunk(3, -1)]
        return self.outside(F.scaled_dot_product_attention(*parts, is_causal=self.causal).transpose(1, 2).flatten(2))


class Pooled(nn.Module):
    """The mean over the middle axes."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(tuple(range(2, x.ndim))) if x.ndim == 4 else x.mean(1)


def _layers(recipe: list[Callable[[], nn.Module]]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(make() for make in recipe))


def _classes(batch: int) -> Tensor:
    return torch.randint(0, CLASSES, (batch,))


def _mlp(draw: random.Random, width: int) -> Callable[[], nn.Module]:
    hidden, activation = draw.choice((7, 16, 24)), draw.choice(ACTIVATIONS)
    dropout = draw.choice((0.0, 0.0, 0.2))
    return lambda: nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, hidden), activation(), nn.Dropout(dropout), nn.Linear(hidden, width)
    )


def _vectors(draw: random.Random) -> Made:
    """x [b, n]."""
    batch, width = draw.choice((4, 6, 8)), draw.choice((9, 12, 20))
    first, recipe = width, list[Callable[[], nn.Module]]()
    for _ in range(draw.randint(2, 4)):
        block = draw.choice(("linear", "linear", "residual", "gate", "norm"))
        if block == "linear":
            after, bias = draw.choice((10, 16, 21)), draw.random() < 0.7
            recipe += [lambda a=width, b=after, bias=bias: nn.Linear(a, b, bias=bias), draw.choice(ACTIVATIONS)]
            width = after
        elif block == "residual":
            inner = _mlp(draw, width)
            recipe.append(lambda inner=inner: Sum(inner()))
        elif block == "gate":
            inner_width = draw.choice((4, 7))
            recipe.append(lambda a=width, b=inner_width: Gate(a, b))
            width += inner_width
        else:
            recipe.append(lambda a=width: nn.BatchNorm1d(a))
    recipe.append(lambda a=width: nn.Linear(a, CLASSES))
    return _layers(recipe), lambda: Data((torch.randn(batch, first),), (_classes(batch),))


def _images(draw: random.Random) -> Made:
    """x [b, c, h, w]."""
    batch, channels, height, width = (
        draw.choice((2, 3)),
        draw.choice((1, 3)),
        draw.choice((10, 13)),
        draw.choice((8, 11)),
    )
    shape, recipe = (batch, channels, height, width), list[Callable[[], nn.Module]]()
    for _ in range(draw.randint(2, 3)):
        block = draw.choice(("conv", "conv", "residual", "pool", "local"))
        if block == "conv":
            after, stride, norm = draw.choice((4, 6)), draw.choice((1, 1, 2)), draw.random() < 0.4
            recipe.append(lambda a=channels, b=after, s=stride: nn.Conv2d(a, b, 3, s, 1))
            recipe += [lambda b=after: nn.BatchNorm2d(b)] if norm else []
            recipe.append(draw.choice(ACTIVATIONS))
            channels, height, width = after, (height + stride - 1) // stride, (width + stride - 1) // stride
        elif block == "residual":
            recipe.append(lambda a=channels: Sum(nn.Sequential(nn.Conv2d(a, a, 3, padding=1), nn.ReLU())))
        elif block == "pool":
            recipe.append(draw.choice((lambda: nn.MaxPool2d(2), lambda: nn.AvgPool2d(2))))
            height, width = height // 2, width // 2
        else:
            after = draw.choice((2, 3))
            size = (height, width)
            recipe.append(lambda a=channels, b=after, s=size: LocallyConnected2d(a, b, size=s, kernel=2))
            channels, height, width = after, height - 1, width - 1
    if draw.random() < 0.5:
        recipe += [Pooled, lambda a=channels: nn.Linear(a, CLASSES)]
    else:
        features = channels * height * width
        recipe += [nn.Flatten, lambda a=features: nn.Linear(a, CLASSES)]
    return _layers(recipe), lambda: Data((torch.randn(*shape),), (_classes(batch),))


def _tokens(draw: random.Random) -> Made:
    """x [b, t] of numbers of words, embedded to [b, t, heads * size]."""
    batch, length = draw.choice((2, 4)), draw.choice((5, 6, 8))
    heads, size = draw.choice((2, 3, 4)), draw.choice((3, 4))
    width, recipe = heads * size, list[Callable[[], nn.Module]]()
    for _ in range(draw.randint(1, 2)):
        causal = draw.random() < 0.5
        recipe.append(
            lambda causal=causal: Sum(nn.Sequential(nn.LayerNorm(width), Attention(heads, size, causal=causal)))
        )
        branches = [_mlp(draw, width) for _ in range(draw.choice((1, 1, 2)))]
        recipe.append(lambda branches=branches: Sum(*(branch() for branch in branches)))
    recipe += [Pooled, lambda: nn.Linear(width, CLASSES)]
    layers = _layers(recipe)
    words = 20
    return (
        lambda: nn.Sequential(nn.Embedding(words, width), layers()),
        lambda: Data((torch.randint(0, words, (batch, length)),), (_classes(batch),)),
    )
