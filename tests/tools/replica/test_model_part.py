"""What a process trains: a model that begins with the weights of a file."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from cutset.errors import CheckpointError
from cutset.models.task import Task, make_example_batches
from cutset.tools.job.process_specs import TrainingSpec
from cutset.tools.replica.model_part import UncutModelPart
from cutset.tools.task.load_task import TaskSpec


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


NORMED = Task("normed", normed, nn.functional.mse_loss, make_example_batches(((3,),)))


def beginning(folder: Path) -> TrainingSpec:
    return TrainingSpec(
        TaskSpec("own"), batch=2, micro_batch=2, seed=1, replicas=1, steps=1, evaluate_every=0, folder=str(folder)
    )


def test_an_uncut_model_loads_parameters_and_buffers_from_the_file(tmp_path: Path) -> None:
    state = {name: torch.full_like(tensor, 3) for name, tensor in normed().state_dict().items()}
    save_file(state, tmp_path / "initial.safetensors")
    model_part = UncutModelPart(beginning(tmp_path), NORMED, seed=0)
    assert model_part.values.tolist() == [3.0] * (12 + 4 + 4 + 4)
    assert [buffer.unique().tolist() for buffer in model_part.buffers()] == [[3.0], [3.0], [3]]
    assert {region.name for region, _ in model_part.state()} == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    save_file({**normed().state_dict(), "0.weight": torch.ones(3, 4)}, tmp_path / "initial.safetensors")
    with pytest.raises(CheckpointError, match=r"E809: .* has 0.weight of shape \(3, 4\); in the model it has \(4, 3\)"):
        UncutModelPart(beginning(tmp_path), NORMED, seed=0)
