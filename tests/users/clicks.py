"""A stream that is larger than memory would like: rows drawn as they are read, in files that are numbers."""

import torch
from torch import nn
from torch.utils.data import IterableDataset, get_worker_info

import cutset

ROWS, WEIGHTS = 60_000, torch.randn(30, generator=torch.Generator().manual_seed(7))


class Clicks(IterableDataset):
    def __init__(self, split: str) -> None:
        self.first, self.count = (0, ROWS) if split == "train" else (ROWS, 4_000)

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        worker = get_worker_info()
        begin, every = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in range(self.first + begin, self.first + self.count, every):
            row = torch.randn(30, generator=torch.Generator().manual_seed(number))
            yield row, (row @ WEIGHTS + row[0] * row[1] > 0).float()


def task() -> cutset.Task:
    net = lambda: nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    loss = nn.functional.binary_cross_entropy_with_logits
    right = lambda outputs, targets: int(((outputs > 0) == (targets > 0)).sum())
    return cutset.Task("clicks", net, loss, data=Clicks, correct=right, batch=64)
