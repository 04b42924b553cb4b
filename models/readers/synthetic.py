"""Synthetic samples, for models whose own data cannot be shipped: drawn from fixed seeds, learnable, meaningless."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..task import Data, TaskError

SAMPLES = {"train": 256, "test": 64}
MAX_CLASSES = 10  # classes that occur among the samples
PATTERN_SEED = 0
NOISE = 0.5


def synthetic_images(shape: tuple[int, ...], classes: int) -> Callable[[str], Data]:
    """Return `read(split)` of 256 training or 64 test samples [n, *shape], each the pattern of its class plus noise.

    Only the first ten classes occur, since more could not be learnt from so few samples.
    """

    def read(split: str) -> Data:
        generator = _generator(split)
        patterns = torch.randn(min(classes, MAX_CLASSES), *shape, generator=torch.Generator().manual_seed(PATTERN_SEED))
        labels = torch.randint(len(patterns), (SAMPLES[split],), generator=generator)
        noise = torch.randn(len(labels), *shape, generator=generator)
        return Data((patterns[labels].add_(noise, alpha=NOISE),), (labels,))

    return read


def synthetic_text(length: int, vocabulary: int) -> Callable[[str], Data]:
    """Return `read(split)` of 256 training or 64 test random walks over tokens, int64 [n, length].

    The targets are the next tokens, [n, length]. Each token is followed by one of two others, nine times in ten by the
    first of them.
    """

    def read(split: str) -> Data:
        generator = _generator(split)
        table = torch.randint(vocabulary, (vocabulary, 2), generator=torch.Generator().manual_seed(PATTERN_SEED))
        walk = torch.empty(SAMPLES[split], length + 1, dtype=torch.int64)
        walk[:, 0] = torch.randint(vocabulary, (len(walk),), generator=generator)
        rare: Tensor = (torch.rand(len(walk), length, generator=generator) < 0.1).long()
        for i in range(length):
            walk[:, i + 1] = table[walk[:, i], rare[:, i]]
        return Data((walk[:, :-1].clone(),), (walk[:, 1:].clone(),))

    return read


def _generator(split: str) -> torch.Generator:
    """Return a generator whose seed depends on the split; TaskError for an unknown split."""
    if split not in SAMPLES:
        raise TaskError(f"split {split!r} is not known; known: {', '.join(SAMPLES)}")
    return torch.Generator().manual_seed(1 + list(SAMPLES).index(split))
