"""Models without weights, and those whose code needs values when it is built."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cutset.errors import BadInput
from cutset.models.task import Task, make_example_batches
from cutset.tools.job.replica_plan import has_sparse_gradients
from cutset.tools.task import meta_model
from cutset.tools.task.capture_task import capture_task
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.task.meta_model import build_without_weights


class Stochastic(nn.Module):
    """Asks tensors for numbers while it is built, as stochastic depth does."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        rates = [rate.item() for rate in torch.linspace(0, 0.3, 3)]
        sizes = torch.tensor([width, 4]).tolist()
        self.first, self.drop = nn.Linear(6, sizes[0]), nn.Dropout(rates[1])
        self.last = nn.Linear(sizes[0], int(np.asarray(torch.arange(3)).sum()))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.first(x)))  # type: ignore[no-any-return]


def task_of(width: int = 8) -> Task:
    example = make_example_batches(((6,),), classes=3)
    return Task("net", lambda: Stochastic(width), nn.functional.cross_entropy, example, batch=4)


def test_a_model_that_looks_at_values_is_built_with_values() -> None:
    model = build_without_weights(task_of())
    assert model.drop.p == pytest.approx(0.15)
    assert not has_sparse_gradients(task_of())
    graph = capture_task(TaskSpec("test"), task_of()).train
    assert graph.tensors["first.weight"].shape == (8, 6)


def test_other_models_are_built_on_meta() -> None:
    task = Task("net", lambda: nn.Linear(6, 3), nn.functional.cross_entropy, make_example_batches(((6,),), classes=3))
    assert all(parameter.is_meta for parameter in build_without_weights(task).parameters())


def test_a_large_one_is_never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_model, "MAX_WHOLE_BYTES", 2048)
    assert build_without_weights(task_of(8)).first.weight.shape == (8, 6)
    with pytest.raises(BadInput, match=r"E303: .*test_meta_model.py:\d+ .*more than 2 KiB\n  fix: .*with torch.device"):
        build_without_weights(task_of(100_000))
    hooks = nn.modules.module._global_parameter_registration_hooks
    assert not hooks


def test_a_model_that_fails_in_any_case_says_why() -> None:
    def build() -> nn.Module:
        raise KeyError("hidden_size")

    task = Task("net", build, nn.functional.cross_entropy, make_example_batches(((6,),), classes=3))
    with pytest.raises(BadInput, match=r"E303: .*KeyError: 'hidden_size'"):
        build_without_weights(task)
