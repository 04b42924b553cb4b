"""What the processes of a run do, in this process: the share of right answers, stored tensors, and the baseline."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from cutset.models.stream import SampleStream
from cutset.models.task import Data, Task, example_like
from cutset.partition.errors import Diverged
from cutset.ps.rule import SGD, Adagrad
from cutset.runtime.assignment import LAUNCHER
from cutset.runtime.beacon import Beacon
from cutset.runtime.memory_channel import MemoryNetwork
from cutset.runtime.message import Message
from cutset.tools.load import TaskSpec, load_task
from cutset.tools.roles import BaselineSetup, Course, accuracy, baseline, steps_done, stored, worker_name

MODELS = Path(__file__).parent / "user_models"
TASK = f"{MODELS / 'good.py'}:exact"


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


def test_tensors_are_read_one_by_one_from_the_file(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3)}
    save_file(tensors, tmp_path / "initial.safetensors")
    value = stored(str(tmp_path / "initial.safetensors"))
    assert all(torch.equal(value(name), tensor) for name, tensor in tensors.items())


def test_a_worker_is_named_after_its_replica_and_machine() -> None:
    assert worker_name(1, 2) == "worker-1.2"
    assert worker_name(1, 2, 3) == "worker-1.2+3"


def test_the_steps_that_a_worker_has_done_follow_from_its_progress() -> None:
    assert [steps_done(progress) for progress in (None, 7, "712 messages", "step 0", "step 41")] == [0, 0, 0, 1, 42]


# One process ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    monkeypatch.setattr(sys, "path", sys.path[:])
    path = tmp_path / "initial.safetensors"
    save_file(load_task(TaskSpec(TASK)).build(seed=3).state_dict(), path)
    return Course(
        TaskSpec(TASK), batch=8, micro_batch=8, seed=3, replicas=1, steps=30, evaluate_every=10, initial=str(path)
    )


def run_baseline(course: Course, rule: SGD | Adagrad) -> tuple[dict[str, Any], list[Message]]:
    """The result, and what the launcher was told on the way."""
    told: list[Message] = []

    def launcher(channel: Any) -> None:
        while not told or told[-1].kind != "done":
            told.append(channel.receive(30.0))

    def role(channel: Any) -> dict[str, Any]:
        result = baseline(channel, msgspec.to_builtins(BaselineSetup(course, rule)), Beacon())
        channel.send(LAUNCHER, Message("done"))
        return result

    results = MemoryNetwork().run({"one-process": role, LAUNCHER: launcher})
    return results["one-process"], told[:-1]


def plain(course: Course, lr: float) -> tuple[list[float], Tensor]:
    """Losses and parameters of the same steps of plain torch."""
    task = load_task(course.spec)
    assert task.data is not None
    model, data = task.build(seed=course.seed), task.data("train")
    stream = SampleStream(len(data), batch=course.batch, seed=course.seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for step in range(course.steps):
        batch = data.rows(stream.indices(step))
        optimiser.zero_grad()
        loss = task.loss(model(*batch.inputs), *batch.targets)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    test = task.data("test")
    right = task.correct(model(*test.inputs), *test.targets)
    return losses, torch.tensor(right / len(test))


def test_one_process_trains_as_plain_torch_does(course: Course) -> None:
    result, told = run_baseline(course, SGD(0.1))
    losses, share = plain(course, 0.1)
    assert result["losses"][-1] == (30 * 8, pytest.approx(losses[-1], abs=1e-12))
    assert [point["samples"] for point in result["curve"]] == [80, 160, 240]
    assert result["curve"][-1]["test_accuracy"] == pytest.approx(float(share))
    progress = [m.body for m in told if m.kind == "progress"]
    assert [body["steps"] for body in progress] == [30] * len(progress)
    assert (progress[-1]["step"], progress[-1]["samples"]) == (30, 30 * 8)
    assert [m.body for m in told if m.kind == "tested"] == result["curve"]


def test_one_process_tests_at_the_end_alone_where_nothing_else_is_asked(course: Course) -> None:
    result, _ = run_baseline(msgspec.structs.replace(course, evaluate_every=0), Adagrad(0.1))
    assert [point["samples"] for point in result["curve"]] == [240]


def test_one_process_stops_at_the_first_loss_that_is_not_finite(course: Course) -> None:
    with pytest.raises(Diverged, match=r"the loss of one-process at step \d is (nan|inf)") as caught:
        run_baseline(course, SGD(1e200))
    assert caught.value.code == "E702"
