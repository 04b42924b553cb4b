"""The file that a run begins with is the same whether the model was built at once or one tensor after the other."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from cutset.errors import BadInput
from cutset.models.task import Data, Task
from cutset.tools.job import initial_weights as first_weights
from cutset.tools.job.initial_weights import InitialWeights, write_initial_weights


class Net(nn.Module):
    """Tied weights, a frozen one, buffers of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 16)
        self.body = nn.Sequential(nn.Linear(16, 40), nn.BatchNorm1d(40), nn.Linear(40, 16))
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.table.weight
        self.scale = nn.Parameter(torch.rand(16), requires_grad=False)
        self.register_buffer("angles", torch.linspace(0, 1, 16).cos(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(self.table(x) * self.scale * self.angles))
        return y


def task_of(model: Callable[[], nn.Module]) -> Task:
    loss = nn.CrossEntropyLoss(weight=torch.linspace(0.5, 1.5, 30))
    return Task("net", model, loss, lambda n: Data((torch.zeros(n, dtype=torch.int64),) * 1, ()))


CONSTANTS = {"constant.1": torch.arange(3)}


def written(path: Path, task: Task, weights_file: Path | None = None) -> tuple[InitialWeights, dict[str, Tensor]]:
    first = write_initial_weights(path, task, seed=7, constants=CONSTANTS, weights_file=weights_file)
    return first, load_file(path)


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_weights, "MAX_WHOLE_BYTES", 0)


def test_drawn_apart_they_are_those_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, expected = written(tmp_path / "whole", task_of(Net))
    monkeypatch.setattr(first_weights, "MAX_WHOLE_BYTES", 0)
    first, found = written(tmp_path / "apart", task_of(Net))
    assert whole.whole
    assert not first.whole
    assert first.notes == ()
    assert {"head.weight", "(loss).weight", "constant.1", "angles"} <= found.keys()
    same(found, expected)
    assert first_weights.state_names(first.model) == first_weights.state_names(whole.model)


@pytest.mark.usefixtures("apart")
def test_what_cannot_be_drawn_apart_is_built_and_told(tmp_path: Path) -> None:
    def through_an_array() -> nn.Module:
        model, array = Net(), np.zeros(16, dtype=np.float32)
        torch.from_numpy(array).fill_(3)
        with torch.no_grad():
            model.scale.mul_(torch.from_numpy(array * 2))
        return model

    first, found = written(tmp_path / "file", task_of(through_an_array))
    assert first.whole
    assert len(first.notes) == 1
    assert "drawn in one process, which held them all" in first.notes[0]
    assert torch.equal(found["scale"], task_of(Net).build(seed=7).get_parameter("scale") * 6)


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_they_may_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(first_weights, "MAX_WHOLE_BYTES", limit)
    other = task_of(Net).build(seed=1).state_dict()
    del other["table.weight"]  # it is there as head.weight
    save_file({name: tensor.double() if name == "scale" else tensor for name, tensor in other.items()}, tmp_path / "in")
    _, found = written(tmp_path / "out", task_of(Net), tmp_path / "in")
    for name, tensor in other.items():
        assert torch.equal(found[name], tensor), name
    assert torch.equal(found["table.weight"], other["head.weight"])
    assert torch.equal(found["angles"], torch.linspace(0, 1, 16).cos())
    assert torch.equal(found["constant.1"], torch.arange(3))


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_a_file_of_another_model_is_refused_with_all_that_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(first_weights, "MAX_WHOLE_BYTES", limit)
    state = task_of(Net).build(seed=1).state_dict()
    del state["head.weight"], state["body.0.bias"]
    state["scale"] = torch.zeros(4)
    state["more"] = torch.zeros(1)
    save_file(state, tmp_path / "in")
    with pytest.raises(BadInput) as caught:
        written(tmp_path / "out", task_of(Net), tmp_path / "in")
    said = str(caught.value)
    assert "E317" in said
    assert "has no body.0.bias; has more; has another shape for scale of [4] instead of [16]" in said
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("weights")
    with pytest.raises(BadInput, match=r"E318.*no weights: .*in cannot be read"):
        written(tmp_path / "out", task_of(Net), tmp_path / "in")
