"""Modules that learn their sizes from the first batch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cutset.models.task import Data, Task
from cutset.tools.task.lazy_modules import initialise_lazy_modules
from cutset.tools.task.load_task import build_model

BATCH = Data((torch.zeros(4, 6),), (torch.zeros(4, dtype=torch.int64),))


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.Dropout(0.5), nn.LazyLinear(2))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_they_have_their_sizes_once_a_task_builds_them(device: str) -> None:
    task = Task("lazy", lazy, F.cross_entropy, lambda batch: BATCH, batch=4)
    model = build_model(task, seed=1, device=device)
    assert [tuple(p.shape) for p in model.parameters()] == [(3, 6), (3,), (3,), (3,), (2, 3), (2,)]
    assert model.training
    assert {p.device.type for p in model.parameters()} == {device}


def test_the_same_seed_gives_the_same_weights_and_disturbs_no_generator() -> None:
    torch.manual_seed(5)
    first, second = (initialise_lazy_modules(lazy(), lambda: BATCH, seed=1, device="cpu") for _ in range(2))
    drawn = torch.rand(2)
    torch.testing.assert_close(dict(first.state_dict()), dict(second.state_dict()), rtol=0, atol=0)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(2))


def test_other_models_are_not_run() -> None:
    def fail() -> Data:
        raise AssertionError

    model = nn.Linear(2, 2)
    assert initialise_lazy_modules(model, fail, seed=0, device="cpu") is model
