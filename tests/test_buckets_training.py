"""Training on buckets of lengths: what a loop without any padding computes, and the same bits after a resumption."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from marking import with_slow
from places import USER_MODELS
from safetensors.torch import load_file
from torch import nn

from cutset.errors import BadInput
from cutset.models.task import Task
from cutset.ps.methods.registry import parse_method
from cutset.tools.config.run_config import RunConfig
from cutset.tools.evaluation.evaluate import evaluate
from cutset.tools.job.prepare import prepare
from cutset.tools.samples.dataset_samples import DatasetSamples
from cutset.tools.samples.read_samples import read_split
from cutset.tools.samples.sample_loader import make_stream
from cutset.tools.task.load_task import TaskSpec, load_task
from cutset.tools.task.plan_request import PlanRequest
from cutset.tools.train import run

TASK = f"{USER_MODELS / 'buckets.py'}:task"
LR, EPOCHS, REPLICAS, BATCH = 0.5, 2, 2, 8


def options(out: Path, **more: object) -> RunConfig:
    given = RunConfig(TASK, method=parse_method("sync"), replicas=REPLICAS, epochs=EPOCHS, baseline=False, out=out)
    return replace(given, **{"optimizer": "sgd", "lr": LR, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def samples() -> DatasetSamples:
    found = read_split(load_task(TaskSpec(TASK)), "train", one_shape=False)
    assert isinstance(found, DatasetSamples)
    return found


def mean_loss(task: Task, model: nn.Module, split: str, numbers: list[int]) -> torch.Tensor:
    """Return the mean of the losses of sentences, each put through the model alone, as long as it is."""
    assert task.data is not None
    dataset = task.data(split).dataset
    losses = [task.loss(model(dataset[number][0][None]), dataset[number][1][None]) for number in numbers]
    return torch.stack(losses).mean()


@pytest.mark.run
@pytest.mark.parametrize("machines", with_slow([2], [1, 3]))
def test_replicas_train_on_buckets_as_a_loop_without_padding(
    tmp_path: Path, samples: DatasetSamples, machines: int
) -> None:
    """Those that are cut have a program for each length."""
    result = run(prepare(options(tmp_path, machines=machines)))
    task, stream = load_task(TaskSpec(TASK)), make_stream(samples, batch=BATCH, seed=0)
    model, seen = task.build(seed=0), Counter[int]()
    plain = torch.optim.SGD(model.parameters(), lr=LR)
    for step in range(stream.steps(EPOCHS) // REPLICAS):
        both = [stream.indices(step * REPLICAS + replica).tolist() for replica in range(REPLICAS)]
        seen.update(both[0] + both[1])
        plain.zero_grad()
        (mean_loss(task, model, "train", both[0] + both[1])).backward()  # type: ignore[no-untyped-call]
        plain.step()
    assert set(seen.values()) <= {1, 2}
    assert len(seen) == len(samples)
    trained = load_file(tmp_path / "model.safetensors")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        expected = float(mean_loss(task, model.eval(), "test", list(range(21))))
    assert result["test_loss"] == pytest.approx(expected, rel=1e-5)
    for request in (PlanRequest(), PlanRequest(machines=1)):
        assert evaluate(TaskSpec(TASK), tmp_path, request=request)["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 2])
def test_a_stream_is_trained_on_in_buckets(tmp_path: Path, machines: int) -> None:
    task = f"{USER_MODELS / 'buckets.py'}:task(streamed=True)"
    result = run(prepare(replace(options(tmp_path, machines=machines), task=task)))
    assert result["rows"][-1]["samples"] == EPOCHS * 90 // (REPLICAS * BATCH) * REPLICAS * BATCH
    for request in (PlanRequest(), PlanRequest(machines=1)):
        for name in (task, TASK):
            found = evaluate(TaskSpec(name), tmp_path, request=request)["loss"]
            assert found == pytest.approx(result["test_loss"], rel=1e-5)


def test_batches_have_the_shapes_of_buckets(samples: DatasetSamples) -> None:
    stream = make_stream(samples, batch=BATCH, seed=0)
    widths = Counter(samples.rows(stream.indices(step)).inputs[0].shape[1] for step in range(stream.steps(1)))
    assert set(widths) == {4, 8, 16}
    padded, longest = sum(width * count for width, count in widths.items()), 16 * stream.steps(1)
    assert padded < 0.85 * longest, "short sentences are among themselves"


@pytest.mark.slow
def test_a_run_resumes_in_the_middle_of_an_epoch_bit_for_bit(tmp_path: Path) -> None:
    whole = options(tmp_path / "whole", checkpoint_every=3)
    run(prepare(whole))
    middle = tmp_path / "whole" / "checkpoints"
    first = sorted(middle.iterdir(), key=lambda folder: int(folder.name))[0]
    run(prepare(options(tmp_path / "resumed", resume=first)))
    for name, value in load_file(tmp_path / "whole" / "model.safetensors").items():
        assert load_file(tmp_path / "resumed" / "model.safetensors")[name].equal(value)
    assert math.isfinite(float(value.sum()))


@pytest.mark.run
def test_wrong_sizes_are_refused_in_words() -> None:
    with pytest.raises(BadInput, match=r"sample \d+ of the train data.*longer than 8"):
        split_of("task(wrong='long')").find_buckets()
    with pytest.raises(BadInput, match="90 samples, and its buckets have sizes of 7"):
        split_of("task(wrong='sizes')").find_buckets()


def split_of(name: str) -> DatasetSamples:
    found = read_split(load_task(TaskSpec(f"{USER_MODELS / 'buckets.py'}:{name}")), "train", one_shape=False)
    assert isinstance(found, DatasetSamples)
    return found
