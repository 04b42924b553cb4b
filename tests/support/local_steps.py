"""A cut model trained in real processes by a method whose replicas take steps of their own."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import cutset
from cutset.models.tasks.digits import digits
from cutset.ps.methods.registry import parse_method
from cutset.ps.optimizers.registry import parse_optimizer


def check_local_steps(tmp_path: Path, asked: str, rounds: int) -> None:
    """It learns, saves what the shards hold, and pushes in so many rounds.

    3 epochs are 107 steps of either replica, about so, where those who are quicker take more; rounds: of both.
    """
    result = cutset.train(
        "cutset.models:digits",
        machines=2,
        replicas=2,
        method=parse_method(asked),
        optimizer=parse_optimizer("adamw", 0.003),
        epochs=3,
        baseline=False,
        out=tmp_path,
    )
    task, model = digits(), digits().build(seed=9)
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    test = task.data("test")
    with torch.no_grad():
        right = task.correct(model(*test.inputs), *test.targets) / len(test)
    assert right == pytest.approx(result["test_accuracy"], abs=0.01)
    assert right > 0.8
    for machine in range(2):
        told = [result["staleness"][f"worker-{replica}.{machine}"].values() for replica in range(2)]
        assert rounds <= sum(map(sum, told)) < 107, "they push as often as they take steps"
