"""What the processes of a run do, in this process: the baseline."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from places import USER_MODELS
from safetensors.torch import save_file
from torch import Tensor

from cutset.errors import Diverged
from cutset.models.sample_stream import SampleStream
from cutset.ps.optimizers.standard import SGD, Adagrad
from cutset.runtime.channel.memory_channel import MemoryNetwork
from cutset.runtime.channel.message import LAUNCHER, Message
from cutset.runtime.hosts.heartbeat import RoleProgress
from cutset.tools.job.process_specs import BaselineSpec, TrainingSpec
from cutset.tools.task.load_task import TaskSpec, load_task
from cutset.tools.training.roles import run_baseline

MODELS = USER_MODELS
TASK = f"{MODELS / 'good.py'}:exact"


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingSpec:
    monkeypatch.setattr(sys, "path", sys.path[:])
    path = tmp_path / "initial.safetensors"
    save_file(load_task(TaskSpec(TASK)).build(seed=3).state_dict(), path)
    return TrainingSpec(
        TaskSpec(TASK), batch=8, micro_batch=8, seed=3, replicas=1, steps=30, evaluate_every=10, folder=str(tmp_path)
    )


def train_baseline(training: TrainingSpec, optimizer: SGD | Adagrad) -> tuple[dict[str, Any], list[Message]]:
    """The result, and what the launcher was messages on the way."""
    messages: list[Message] = []

    def launcher(channel: Any) -> None:
        while not messages or messages[-1].kind != "done":
            messages.append(channel.receive(30.0))

    def role(channel: Any) -> dict[str, Any]:
        result = run_baseline(channel, msgspec.to_builtins(BaselineSpec(training, optimizer)), RoleProgress())
        channel.send(LAUNCHER, Message("done"))
        return result

    results = MemoryNetwork().run({"one-process": role, LAUNCHER: launcher})
    return results["one-process"], messages[:-1]


def plain(training: TrainingSpec, lr: float) -> tuple[list[float], Tensor]:
    """Losses and parameters of the same steps of plain torch."""
    task = load_task(training.task)
    assert task.data is not None
    model, data = task.build(seed=training.seed), task.data("train")
    stream = SampleStream(len(data), batch=training.batch, seed=training.seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for step in range(training.steps):
        batch = data.rows(stream.indices(step))
        optimiser.zero_grad()
        loss = task.loss(model(*batch.inputs), *batch.targets)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    test = task.data("test")
    right = task.correct(model(*test.inputs), *test.targets)
    return losses, torch.tensor(right / len(test))


def test_one_process_trains_as_plain_torch_does(training: TrainingSpec) -> None:
    result, messages = train_baseline(training, SGD(0.1))
    losses, share = plain(training, 0.1)
    assert result["losses"][-1] == (30 * 8, pytest.approx(losses[-1], abs=1e-12))
    assert [point["samples"] for point in result["curve"]] == [80, 160, 240]
    assert result["curve"][-1]["test_accuracy"] == pytest.approx(float(share))
    progress = [m.body for m in messages if m.kind == "progress"]
    assert [body["steps"] for body in progress] == [30] * len(progress)
    assert (progress[-1]["step"], progress[-1]["samples"]) == (30, 30 * 8)
    assert [m.body for m in messages if m.kind == "evaluated"] == result["curve"]


def test_one_process_evaluates_only_at_the_end_by_default(training: TrainingSpec) -> None:
    result, _ = train_baseline(msgspec.structs.replace(training, evaluate_every=0), Adagrad(0.1))
    assert [point["samples"] for point in result["curve"]] == [240]


def test_one_process_stops_at_the_first_loss_that_is_not_finite(training: TrainingSpec) -> None:
    with pytest.raises(Diverged, match=r"the loss of one-process at step \d is (nan|inf)") as caught:
        train_baseline(training, SGD(1e200))
    assert caught.value.code == "E702"
