"""What a process trains: the share of right answers, and a model that begins with the weights of a file."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from cutset.models.task import Data, Task, example_like
from cutset.errors import CheckpointError
from cutset.tools.job.run_config import Course
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.training.trainer import UncutTrainer, accuracy


class Counting:
    """A trainer that has found so many right answers."""

    def __init__(self, right: int | None) -> None:
        self._right = right

    def right(self, task: Task, data: Data, batch: int) -> int | None:
        return self._right


ANY = Task("any", lambda: nn.Identity(), nn.functional.mse_loss, example_like(((),)))


@pytest.mark.parametrize(("right", "share"), [(4, 4 / 5), (0, 0.0), (None, None)])
def test_accuracy_is_a_share_of_the_samples_or_not_known(right: int | None, share: float | None) -> None:
    test = Data((torch.tensor([1.0, -2.0, 3.0, 4.0, 5.0]),), ())
    assert accuracy(Counting(right), ANY, test, 2) == share  # type: ignore[arg-type]


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


NORMED = Task("normed", normed, nn.functional.mse_loss, example_like(((3,),)))


def beginning(path: Path) -> Course:
    return Course(
        TaskSpec("own"), batch=2, micro_batch=2, seed=1, replicas=1, steps=1, evaluate_every=0, initial=str(path)
    )


def test_a_whole_model_begins_with_the_parameters_and_buffers_of_the_file(tmp_path: Path) -> None:
    state = {name: torch.full_like(tensor, 3) for name, tensor in normed().state_dict().items()}
    save_file(state, tmp_path / "initial.safetensors")
    trainer = UncutTrainer(beginning(tmp_path / "initial.safetensors"), NORMED, seed=0)
    assert trainer.values.tolist() == [3.0] * (12 + 4 + 4 + 4)
    assert [buffer.unique().tolist() for buffer in trainer.buffers()] == [[3.0], [3.0], [3]]
    assert {region.name for region, _ in trainer.state()} == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    save_file({**normed().state_dict(), "0.weight": torch.ones(3, 4)}, tmp_path / "initial.safetensors")
    with pytest.raises(CheckpointError, match=r"E809: .* has 0.weight of shape \(3, 4\); in the model it has \(4, 3\)"):
        UncutTrainer(beginning(tmp_path / "initial.safetensors"), NORMED, seed=0)
