"""Sentences of various lengths, padded to a few of them; what was added has no weight."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import cutset

WORDS, CLASSES, LENGTHS, IGNORED = 17, 4, (4, 8, 16), -100


def sentences(split: str) -> list[tuple[Tensor, Tensor]]:
    """Return the words of each sentence, and a label for each word."""
    count = 90 if split == "train" else 21
    generator = torch.Generator().manual_seed(count)
    sizes = torch.randint(1, LENGTHS[-1] + 1, (count,), generator=generator)
    words = [torch.randint(1, WORDS, (size,), generator=generator) for size in sizes.tolist()]
    return [(one, one.cumsum(0) % CLASSES) for one in words]


class Streamed(IterableDataset[Any]):
    """The same sentences in their order, each worker its share."""

    def __init__(self, split: str) -> None:
        self._split = split

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from sentences(self._split)[first::step]


class Tagger(nn.Module):
    """Gives each word a class, by itself and the mean of all; zeros are no words."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(WORDS, 12), nn.Linear(12, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        there = (words > 0).unsqueeze(-1)
        found = self.table(words) * there
        mean = found.sum(1, keepdim=True) / there.sum(1, keepdim=True)
        logits: Tensor = self.out(torch.tanh(found + mean))
        return logits


class LongTagger(Tagger):
    """Has one more layer for sentences of the greatest length, and one for short ones."""

    def __init__(self) -> None:
        super().__init__()
        self.short, self.long = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, words: Tensor) -> Tensor:
        own = self.long if words.shape[1] == LENGTHS[-1] else self.short
        logits: Tensor = super().forward(words) + self.out(own(self.table(words)))
        return logits


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over sentences of the mean over their words."""
    each = nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    return (each.sum(1) / (labels != IGNORED).sum(1)).mean()


def task(*, wrong: str = "", streamed: bool = False) -> cutset.Task:
    def data(split: str) -> Any:
        lengths = LENGTHS[:2] if wrong == "long" else LENGTHS
        sizes = [4] * 7 if wrong == "sizes" else None
        buckets = cutset.Buckets(lengths, pad={0: 0, 1: IGNORED}, sizes=sizes)
        dataset = Streamed(split) if streamed else sentences(split)
        return DataLoader(dataset, collate_fn=buckets)  # type: ignore[arg-type]

    return cutset.Task("tagger", Tagger, loss, data=data, batch=8, parts=5 if streamed else None)


def by_length() -> cutset.Task:
    """The task of a model whose layers depend on the length."""
    return replace(task(), name="by length", model=LongTagger)
