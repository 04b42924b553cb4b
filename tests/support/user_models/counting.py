"""A model that counts: with plain SGD of rate 1 its weight [n] ends as how often each sample was trained on."""

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from cutset.models.parts import Parts
from cutset.models.task import Data, Task

BATCH, STEP_S = 4, 0.002


class Counts(nn.Module):
    """Gives the weights at some numbers, [batch]; takes as long as a small model does."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count))

    def forward(self, numbers: Tensor) -> Tensor:
        time.sleep(STEP_S)
        return self.weight[numbers]


def negative_sum(weights: Tensor) -> Tensor:
    return -weights.mean() * weights.numel()


def make(count: int, train: Any) -> Task:
    tests = Data((torch.arange(BATCH),))
    return Task(
        "counting",
        lambda: Counts(count),
        negative_sum,
        data=lambda split: train if split == "train" else tests,
        correct=None,
        unpack=lambda batch: Data((batch,)),
        batch=BATCH,
    )


class Numbers(Dataset[int]):
    """The numbers themselves."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        return number


def numbered(count: int) -> Task:
    return make(count, Data((torch.arange(count),)))


def read(count: int) -> Task:
    return make(count, Numbers(count))


class Stream(IterableDataset[int]):
    """The numbers in order, of which every worker of a loader yields its share, as torch's documentation has it."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        yield from range(self.count) if info is None else range(info.id, self.count, info.num_workers)


class Undivided(Stream):
    """The same in every worker."""

    def __iter__(self) -> Iterator[int]:
        yield from range(self.count)


class Sized(Stream):
    """A stream that knows its length."""

    def __len__(self) -> int:
        return self.count


def streamed(count: int) -> Task:
    return make(count, Sized(count))


def unsized(count: int) -> Task:
    return make(count, Stream(count))


def undivided(count: int) -> Task:
    return make(count, Undivided(count))


def loaded(count: int) -> Task:
    return make(count, DataLoader(Stream(count), batch_size=7, num_workers=2))


def in_files(count: int) -> Task:
    """Files of different lengths, some empty."""
    bounds = [0, 0, count // 10, count // 3, count // 3, count // 2, count]
    files = list(pairwise(bounds))
    return make(count, Parts(files, lambda file: range(*file)))
