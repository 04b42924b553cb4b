"""What a script's objects say of a run before it begins."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset

from cutset.tools.scripts.script_run import describe_model

DATA = TensorDataset(torch.zeros(90, 2))


class Endless(IterableDataset[Any]):
    """Knows of no end."""

    def __iter__(self) -> Iterator[Any]:
        yield from iter(lambda: torch.zeros(2), None)


@pytest.mark.parametrize(
    ("data", "samples"),
    [
        (DataLoader(DATA, batch_size=4, shuffle=True), 90),
        (DataLoader(DATA, batch_size=4, sampler=RandomSampler(DATA, num_samples=50)), 90),
        (DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 4, drop_last=False)), 90),
        (DataLoader(DATA, batch_sampler=[[1, 2], [5, 7]]), 90),
        (DataLoader(DATA, batch_size=4), 0),
        (DataLoader(DATA, batch_size=None), 0),
        (DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 4, drop_last=False)), 0),
        (DataLoader(Endless(), batch_size=4), 0),
        ([torch.zeros(4, 2)], 0),
    ],
)
def test_samples_are_counted_where_their_order_depends_on_it(data: Any, samples: int) -> None:
    model = nn.Linear(2, 1)
    assert describe_model(model, torch.optim.SGD(model.parameters(), 0.1), [data]).samples == samples
