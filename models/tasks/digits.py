"""`digits`, `digits_local`, `digits_large`, `digits_softmax`: the 1,797 handwritten digits of the UCI repository.

They are part of the package. 1,437 of them train and 360 test, by a fixed permutation. Pixels are scaled to 0..1. See
data/ATTRIBUTION.md.
"""

import gzip
import importlib.resources
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from ..task import Data, Task, TaskError, make_example_batches
from .float64 import to_float64, zero_weights
from .locally_connected import LocallyConnected2d

TRAIN_SAMPLES = 1437
SPLIT_SEED = 0
WHITE = 16  # the largest pixel
LARGE = 24  # rows and columns of enlarged images


def digits() -> Task:
    """Train a 64-128-64-10 perceptron. 50 epochs of SGD at 0.1 or Adagrad at 0.02 reach about 97.5 % test accuracy."""
    return _task("digits", mlp, (64,), epochs=50)


def digits_local() -> Task:
    """Train two locally connected layers and a linear one, a small relative of DistBelief's image nets.

    40 epochs of Adagrad at 0.02 or of SGD at 0.2 reach about 98 % test accuracy.
    """
    return _task("digits_local", local_net, (1, 8, 8), epochs=40)


def digits_large() -> Task:
    """Train three locally connected layers on the digits enlarged to 24 x 24 pixels, a larger net of that kind.

    10 epochs of Adagrad at 0.02 reach about 98 % test accuracy.
    """
    return replace(_task("digits_large", large_net, (1, LARGE, LARGE), epochs=10), batch=64)


def digits_softmax(double: bool = False) -> Task:
    """Train a softmax regression from zero weights, with 650 parameters: a convex problem, for batch methods.

    double: compute in float64 instead of float32.
    """
    task = _task("digits_softmax", softmax, (64,), epochs=50)
    return to_float64(task) if double else task


def softmax() -> nn.Module:
    """Return the linear model from pixels [b, 64] to scores [b, 10]; its 650 parameters are zero."""
    return zero_weights(nn.Linear(64, 10))


def mlp() -> nn.Module:
    """Return the perceptron from pixels [b, 64] to scores [b, 10]; it has 17,226 parameters."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def local_net() -> nn.Module:
    """Return the net from images [b, 1, 8, 8] to scores [b, 10]; it has 13,514 parameters."""
    return nn.Sequential(
        LocallyConnected2d(1, 8, size=(8, 8), kernel=3),  # [b, 8, 6, 6]
        nn.ReLU(),
        LocallyConnected2d(8, 8, size=(6, 6), kernel=3),  # [b, 8, 4, 4]
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def large_net() -> nn.Module:
    """Return the net from images [b, 1, 24, 24] to scores [b, 10]; it has 1,808,970 parameters."""
    maps = (1, 16, 16, 16)
    sizes = [LARGE - 2 * layer for layer in range(len(maps))]
    layers = [
        layer
        for before, after, size in zip(maps, maps[1:], sizes, strict=False)
        for layer in (LocallyConnected2d(before, after, size=(size, size), kernel=3), nn.ReLU())
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(maps[-1] * sizes[-1] ** 2, 10))


def _task(name: str, model: Callable[[], nn.Module], shape: tuple[int, ...], *, epochs: int) -> Task:
    """Return a task on the digits. shape: that of one image, as the model takes it."""
    return Task(
        name=name,
        model=model,
        loss=nn.functional.cross_entropy,
        example=make_example_batches((shape,), classes=10),
        data=lambda split: _read(split, shape),
        batch=20,
        epochs=epochs,
    )


def _read(split: str, shape: tuple[int, ...]) -> Data:
    if split not in ("train", "test"):
        raise TaskError(f"split {split!r} is not known; known: train, test")
    table = _table()
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(SPLIT_SEED))
    rows = table[order[:TRAIN_SAMPLES] if split == "train" else order[TRAIN_SAMPLES:]]
    images = rows[:, :-1].to(torch.float32).div_(WHITE)
    if math.prod(shape) != images.shape[1]:
        images = nn.functional.interpolate(images.reshape(-1, 1, 8, 8), shape[1:], mode="bilinear")
    return Data((images.reshape(-1, *shape),), (rows[:, -1].clone(),))


def _table() -> Tensor:
    """Return all samples, int64 [1797, 65]: the 64 pixels of an image row by row, 0 to 16, then its label."""
    packed = importlib.resources.files("cutset.models").joinpath("data", "digits.csv.gz").read_bytes()
    lines = gzip.decompress(packed).split()
    return torch.from_numpy(np.fromstring(b",".join(lines), dtype=np.int64, sep=",")).reshape(len(lines), -1)
