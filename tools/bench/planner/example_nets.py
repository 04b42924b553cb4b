"""The nets of `cutset bench plan --unlike`: ten kinds of models, each of a size that is planned in seconds."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from ....partition.capture.export import capture
from ....partition.ir.graph import Graph
from .models import defer_bundled, defer_capture, make_square_net
from .random_nets import RandomNet, compute_mean_square


def list_example_nets() -> Mapping[str, Callable[[], Graph]]:
    """Return the captures of all nets, by their names."""
    language = "transformer(layers=4, width=256, heads=4, context=64, vocabulary=4096, batch=4)"
    return {
        "perceptron (mnist)": defer_bundled("mnist"),
        "square net": defer_capture(make_square_net(6, 2560)),
        "speech": defer_bundled("speech"),
        "CNN (mnist_conv)": defer_bundled("mnist_conv"),
        "residual net": defer_bundled("resnet(blocks=(1, 1, 1), width=16, image=64, classes=10)"),
        "VGG": defer_capture(_make_vgg(width=32, size=64)),
        "local filters": defer_bundled("digits_local"),
        "language model, tied": defer_bundled(language),
        "LSTM, unrolled": _unroll_recurrent,
        "wide and deep": defer_capture(_make_wide_and_deep(words=100_000, width=32, hidden=1024)),
        "U-net": defer_capture(_make_unet(channels=32, size=64)),
    }


def _make_vgg(width: int, size: int) -> RandomNet:
    """Return convolutions in four scales and large fully connected layers (Simonyan and Zisserman, 2015)."""
    layers, before = list[nn.Module](), 3
    with torch.device("meta"):
        for scale, count in enumerate((1, 1, 2, 2)):
            for _ in range(count):
                layers += [nn.Conv2d(before, width << scale, 3, padding=1), nn.ReLU()]
                before = width << scale
            layers.append(nn.MaxPool2d(2))
        hidden = 2048
        layers += [nn.Flatten(), nn.Linear(before * (size // 16) ** 2, hidden), nn.ReLU()]
        layers += [nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 100)]
        return RandomNet("VGG", nn.Sequential(*layers), (torch.empty(16, 3, size, size),), compute_mean_square)


class _WideAndDeep(nn.Module):
    """A linear model beside embeddings that a perceptron reads (Cheng et al., 2016)."""

    def __init__(self, words: int, width: int, hidden: int) -> None:
        super().__init__()
        self.words, self.wide = nn.Embedding(words, width), nn.Linear(1000, 1)
        layers = (nn.Linear(8 * width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.deep = nn.Sequential(*layers)

    def forward(self, words: Tensor, numbers: Tensor) -> Tensor:
        scores: Tensor = self.deep(self.words(words).flatten(1)) + self.wide(numbers)
        return scores


def _make_wide_and_deep(words: int, width: int, hidden: int) -> RandomNet:
    with torch.device("meta"):
        example = (torch.empty(256, 8, dtype=torch.int64), torch.empty(256, 1000))
        return RandomNet("wide and deep", _WideAndDeep(words, width, hidden), example, compute_mean_square)


class _Recurrent(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(width, width, layers, batch_first=True), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.lstm(x)[0])
        return y


def _unroll_recurrent() -> Graph:
    with torch.device("meta"):
        net, example = _Recurrent(1024, 2), (torch.empty(32, 8, 1024),)
    return capture(net, compute_mean_square, example, unrolled=True)[0]


class _Unet(nn.Module):
    """Down two scales and up again, with what was on the way down beside (Ronneberger et al., 2015)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        c = channels
        self.first, self.second, self.third = _filter(3, c), _filter(c, 2 * c), _filter(2 * c, 4 * c)
        self.up_1, self.up_2 = nn.ConvTranspose2d(4 * c, 2 * c, 2, 2), nn.ConvTranspose2d(2 * c, c, 2, 2)
        self.fourth, self.fifth, self.out = _filter(4 * c, 2 * c), _filter(2 * c, c), nn.Conv2d(c, 4, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        second = self.second(self.pool(first))
        third = self.third(self.pool(second))
        fourth = self.fourth(torch.cat([self.up_1(third), second], 1))
        out: Tensor = self.out(self.fifth(torch.cat([self.up_2(fourth), first], 1)))
        return out


def _filter(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())


def _make_unet(channels: int, size: int) -> RandomNet:
    with torch.device("meta"):
        return RandomNet("U-net", _Unet(channels), (torch.empty(8, 3, size, size),), compute_mean_square)
