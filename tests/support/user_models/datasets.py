"""Data as torch users have it: datasets with transforms, loaders, and dicts as Hugging Face gives them."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from cutset.models.task import Task

FEATURES, CLASSES = 6, 3


class Points(Dataset[Any]):
    """Points whose class is that of their largest part; training points are moved at random."""

    def __init__(self, split: str) -> None:
        self.count, self.moves = (96, True) if split == "train" else (50, False)
        self.points = torch.randn(self.count, FEATURES, generator=torch.Generator().manual_seed(self.count))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        point = self.points[number]
        moved = point + 0.01 * torch.randn(FEATURES) + random.random() / 100 + float(np.random.rand()) / 100
        return (moved if self.moves else point), int(point[:CLASSES].argmax())


class Named(Points):
    """The same as dicts."""

    def __getitem__(self, number: int) -> dict[str, Any]:  # type: ignore[override]
        point, label = super().__getitem__(number)
        return {"values": point, "scale": torch.ones(1), "labels": label}


class Short(Points):
    """Loses a sample when it is read."""

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        self.count -= 1
        return super().__getitem__(number)


class Failing(Points):
    """Cannot read one of its samples, or has another that is no sample."""

    def __init__(self, split: str, how: str) -> None:
        super().__init__(split)
        self.how = how

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        point, label = super().__getitem__(number)
        if number == 40 and self.moves:
            if self.how == "raise":
                raise OSError("sector 17 cannot be read")
            if self.how == "die":
                import os
                import signal

                os.kill(os.getpid(), signal.SIGKILL)
            return (point * float("nan"), label) if self.how == "nan" else (point[:3], label)
        return point, label


class ByKeyword(nn.Module):
    """Takes its inputs by name, computes its own loss where it has labels."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(FEATURES, CLASSES)

    def forward(self, *, values: Tensor, scale: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.out(torch.tanh(values * scale))
        found = {"logits": logits}
        if labels is not None:
            found["loss"] = nn.functional.cross_entropy(logits, labels)
        return found


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def make(data: Callable[[str], Any], **more: Any) -> Task:
    return Task("points", mlp, nn.functional.cross_entropy, data=data, **{"batch": 8, **more})


def dataset() -> Task:
    return make(Points)


def in_between() -> Task:
    return make(Points, loaders=0)


def loader() -> Task:
    return make(lambda split: DataLoader(Points(split), batch_size=4, shuffle=True, num_workers=2))


def plain_loader() -> Task:
    return make(lambda split: DataLoader(Points(split), batch_size=4, shuffle=True))


def named() -> Task:
    return Task("named", ByKeyword, lambda outputs, labels: outputs["loss"], data=Named, batch=8)


def weighted() -> Task:
    return make(lambda split: DataLoader(Points(split), sampler=WeightedRandomSampler([1.0] * 96, 96)))


def tuple_of_tensors() -> Task:
    return make(lambda split: (torch.zeros(9, FEATURES), torch.zeros(9).long()))


def shrinking() -> Task:
    return make(Short)


def failing(how: str) -> Task:
    return make(lambda split: Failing(split, how))
