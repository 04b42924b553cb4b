"""What the processes of a run do, in this process: the baseline."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from cutset.models.sample_stream import SampleStream
from cutset.errors import Diverged
from cutset.ps.optimizers.standard import SGD, Adagrad
from cutset.runtime.launcher.assignment import LAUNCHER
from cutset.runtime.launcher.heartbeat import Beacon
from cutset.runtime.channel.memory_channel import MemoryNetwork
from cutset.runtime.channel.message import Message
from cutset.tools.job.run_config import BaselineSetup, Course
from cutset.tools.task.load_task import TaskSpec, load_task
from cutset.tools.training.roles import baseline

MODELS = Path(__file__).parent / "user_models"
TASK = f"{MODELS / 'good.py'}:exact"


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
