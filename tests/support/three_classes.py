"""A small convex loss: softmax regression on samples of three classes, for batch methods."""

from functools import lru_cache

import torch
from torch import Tensor

SAMPLES, INPUTS, CLASSES = 60, 8, 3
PORTION = 15  # samples


@lru_cache
def data() -> tuple[Tensor, Tensor]:
    """Three classes that the first inputs tell apart; the other inputs say nothing. [60, 8] and [60]."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, INPUTS, generator=generator, dtype=torch.float64)
    noise = torch.randn(SAMPLES, CLASSES, generator=generator, dtype=torch.float64)
    return inputs, (2 * inputs[:, :CLASSES] + noise).argmax(1)


def softmax(weights: Tensor, first: int = 0, last: int = SAMPLES // PORTION) -> Tensor:
    """The mean loss of portions [first, last), of weights [24]."""
    inputs, classes = (tensor[first * PORTION : last * PORTION] for tensor in data())
    return torch.nn.functional.cross_entropy(inputs @ weights.view(INPUTS, CLASSES), classes)


def start() -> Tensor:
    """Weights of 0."""
    return torch.zeros(INPUTS * CLASSES, dtype=torch.float64)
