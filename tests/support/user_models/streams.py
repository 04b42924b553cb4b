"""Streams that are wrong in some way, and streams that draw at random."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from cutset.models.parts import Parts
from cutset.models.task import Task

FEATURES, CLASSES, COUNT = 6, 3, 90


class Points(IterableDataset[Any]):
    """Points whose class is that of their largest part; training points are moved at random."""

    def __init__(self, split: str, wrong: str = "") -> None:
        self.split, self.wrong, self.epochs = split, wrong, 0
        self.points = torch.randn(COUNT, FEATURES, generator=torch.Generator().manual_seed(len(split)))

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        numbers = range(COUNT) if info is None else range(info.id, COUNT, info.num_workers)
        self.epochs += info is not None and info.id == 0
        if self.split == "train" and self.wrong:
            numbers = self._spoil(numbers)
        for number in numbers:
            point = self.points[number % COUNT]
            label = int(point[:CLASSES].argmax())
            if self.split == "train":
                point = point + 0.01 * torch.randn(FEATURES) + random.random() / 100 + float(np.random.rand()) / 100
            if self.wrong and number == 40 and self.split == "train":
                if self.wrong == "raises":
                    raise OSError("sector 17 cannot be read")
                point = point * float("nan") if self.wrong == "nan" else point[:3] if self.wrong == "shape" else point
            yield point, label

    def _spoil(self, numbers: range) -> Any:
        if self.wrong == "nothing":
            return range(0)
        if self.wrong == "endless":
            return iter(lambda: random.randrange(40), -1)
        return numbers[: -self.epochs] if self.wrong == "shrinks" and numbers[0] == 0 else numbers


def make(data: Any, **more: Any) -> Task:
    def model() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.ReLU(), torch.nn.Linear(16, CLASSES))

    return Task("points", model, torch.nn.functional.cross_entropy, data=data, **{"batch": 8, **more})


def points() -> Task:
    return make(Points, samples=COUNT)


def in_between() -> Task:
    return make(Points, samples=COUNT, loaders=0)


def loader() -> Task:
    return make(lambda split: DataLoader(Points(split), batch_size=4, num_workers=2), samples=COUNT)


def wrong(how: str, parts: int = 3) -> Task:
    return make(lambda split: Points(split, how), samples=COUNT, parts=parts)


def read_once() -> Task:
    return make(lambda split: iter(Points(split)))


def whole_batches() -> Task:
    return make(lambda split: DataLoader(Points(split), batch_size=None))


def one_file() -> Task:
    return make(lambda split: Parts([0], lambda file: iter(Points("test"))))
