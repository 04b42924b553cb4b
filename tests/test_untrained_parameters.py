"""Parameters without a gradient stay as they are, weight decay or not, as torch's own optimizers leave them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from places import USER_MODELS
from safetensors.torch import load_file

import cutset
from cutset.tools.task.load_task import TaskSpec, build_model, load_task

TASK = f"{USER_MODELS / 'taught.py'}:taught"
OPTIONS: dict[str, Any] = {"optimizer": "sgd:weight_decay=0.5", "lr": 0.1, "epochs": 1}


def train_in_torch() -> dict[str, torch.Tensor]:
    """One epoch of plain torch, in the order of the file."""
    task = load_task(TaskSpec(TASK))
    model = build_model(task, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=OPTIONS["lr"], weight_decay=0.5)
    (inputs,), (targets,) = task.data("train").inputs, task.data("train").targets
    for x, y in zip(inputs.split(task.batch), targets.split(task.batch), strict=True):
        optimizer.zero_grad()
        task.loss(model(x), y).backward()
        optimizer.step()
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


@pytest.mark.run
@pytest.mark.parametrize(
    "choice",
    [{"replicas": 2, "method": "sync"}, {"machines": 2}, {"replicas": 2, "method": "hogwild"}, {"method": "allreduce"}],
    ids=str,
)
def test_they_are_as_in_torch(tmp_path: Path, choice: dict[str, Any]) -> None:
    initial, taught = build_model(load_task(TaskSpec(TASK)), seed=0).state_dict(), train_in_torch()
    result = cutset.train(TASK, out=tmp_path / "run", **OPTIONS, **choice)
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert sorted(weights) == sorted(initial)
    for name in ("teacher.weight", "teacher.bias", "unused.weight", "unused.bias"):
        assert taught[name].equal(initial[name])
        assert weights[name].equal(initial[name])
    name = "net.weight"  # which is trained, with weight decay: as in torch but for the order of samples
    assert (weights[name] - taught[name]).norm() < 0.5 * (initial[name] - taught[name]).norm()
    assert "4 parameters get no gradient" in " ".join(result["notes"])


@pytest.mark.run
def test_a_placement_of_such_a_run_serves_another(tmp_path: Path) -> None:
    options = {**OPTIONS, "method": "sync", "baseline": False}
    cutset.train(TASK, out=tmp_path / "first", machines=2, **options)
    cutset.train(TASK, out=tmp_path / "second", placement=tmp_path / "first" / "placement.json", **options)
    first, second = (load_file(tmp_path / run / "model.safetensors") for run in ("first", "second"))
    assert all(tensor.equal(second[name]) for name, tensor in first.items())


@pytest.mark.run
@pytest.mark.parametrize("machines", [1, 2])
def test_layers_that_are_for_some_lengths_alone_are_trained(tmp_path: Path, machines: int) -> None:
    name = f"{USER_MODELS / 'buckets.py'}:by_length"
    initial = build_model(load_task(TaskSpec(name)), seed=0).state_dict()
    result = cutset.train(name, out=tmp_path / "run", machines=machines, baseline=False, **OPTIONS)
    weights = load_file(tmp_path / "run" / "model.safetensors")
    for layer in ("short", "long", "out"):
        before, after = (state[f"{layer}.weight"].flatten() for state in (initial, weights))
        assert torch.cosine_similarity(before, after, dim=0) < 0.9999  # by gradients, and not by weight decay alone
    assert "no gradient" not in " ".join(result["notes"])
