"""Networks drawn from a seed: layers in a row, images with residuals and branches, and attention."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Example = tuple[Tensor, ...]


@dataclass(frozen=True)
class RandomNet:
    """A module on the meta device, an example batch and a loss of its output. name: its kind and seed."""

    name: str
    model: nn.Module
    example: Example
    loss: Callable[[Tensor], Tensor]


def compute_mean_square(output: Tensor) -> Tensor:
    """Return the mean square of an output, the loss of a net without targets."""
    return output.square().mean()


def make_random_net(seed: int) -> RandomNet:
    """Return the net of a seed; the seed modulo 4 chooses its kind."""
    draw = random.Random(seed)
    kind, make = (
        ("layers", _make_layers),
        ("images", _make_images),
        ("attention", _make_attention),
        ("branches", _make_branches),
    )[seed % 4]
    with torch.device("meta"):
        model, example = make(draw)
    return RandomNet(f"{kind} {seed}", model, example, compute_mean_square)


def _make_layers(draw: random.Random) -> tuple[nn.Module, Example]:
    """Return fully connected layers of random widths."""
    widths = [draw.choice((64, 100, 512, 1024, 2560, 4096)) for _ in range(draw.randint(3, 7))]
    parts: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        parts += [nn.Linear(before, after, bias=draw.random() < 0.7), draw.choice((nn.ReLU, nn.Tanh, nn.GELU))()]
        if draw.random() < 0.3:
            parts.append(nn.LayerNorm(after))
    return nn.Sequential(*parts), (torch.empty(draw.choice((8, 32, 100, 400)), widths[0]),)


class _Residual(nn.Module):
    """x + f(x)"""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.inner(x)
        return y


class _ParallelBranches(nn.Module):
    """Several modules side by side, whose channels are concatenated."""

    def __init__(self, branches: Sequence[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _make_convolution(draw: random.Random, before: int, after: int, *, stride: int = 1) -> nn.Module:
    kernel = draw.choice((1, 3, 5))
    parts: list[nn.Module] = [nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2)]
    if draw.random() < 0.4:
        parts.append(nn.BatchNorm2d(after))
    return nn.Sequential(*parts, nn.ReLU())


def _make_images(draw: random.Random) -> tuple[nn.Module, Example]:
    """Return convolutions with strides, residuals and pooling, and a classifier."""
    channels, size = draw.choice((16, 32, 64)), draw.choice((24, 32, 64))
    parts: list[nn.Module] = [_make_convolution(draw, 3, channels)]
    left = size
    for _ in range(draw.randint(1, 4)):
        if draw.random() < 0.5:
            parts.append(_Residual(_make_convolution(draw, channels, channels)))
        else:
            wider = draw.choice((32, 48, 96, 128))
            parts += [_make_convolution(draw, channels, wider)]
            channels = wider
            if left % 2 == 0 and left > 4:
                parts.append(nn.MaxPool2d(2))
                left //= 2
    parts += [nn.Flatten(), nn.Linear(channels * left * left, draw.choice((10, 100)))]
    return nn.Sequential(*parts), (torch.empty(draw.choice((4, 16, 64)), 3, size, size),)


def _make_attention(draw: random.Random) -> tuple[nn.Module, Example]:
    """Return transformer layers, norm first or last."""
    heads, width = draw.choice((2, 4, 8)), draw.choice((128, 256, 512))
    layers = [
        nn.TransformerEncoderLayer(
            width,
            heads,
            width * draw.choice((2, 4)),
            dropout=0.0,
            batch_first=True,
            norm_first=draw.random() < 0.5,
        )
        for _ in range(draw.randint(1, 2))
    ]
    return nn.Sequential(*layers), (torch.empty(draw.choice((1, 4, 16)), draw.choice((64, 128, 512)), width),)


def _make_branches(draw: random.Random) -> tuple[nn.Module, Example]:
    """Return blocks of parallel convolutions, as in GoogLeNet."""
    channels, size = 3, draw.choice((24, 32, 48))
    parts: list[nn.Module] = []
    for _ in range(draw.randint(1, 3)):
        widths = [draw.choice((8, 16, 48)) for _ in range(draw.randint(2, 4))]
        parts.append(_ParallelBranches([_make_convolution(draw, channels, width) for width in widths]))
        channels = sum(widths)
    return nn.Sequential(*parts), (torch.empty(draw.choice((4, 16, 64)), 3, size, size),)
