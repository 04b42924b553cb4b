"""Training as users have it: a dataset that is moved at random, a schedule, resumption in the middle of an epoch."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from marking import with_slow
from places import USER_MODELS
from safetensors.torch import load_file
from torch.optim.lr_scheduler import LambdaLR

from cutset.models.sample_stream import SampleStream
from cutset.ps.methods.registry import parse_method
from cutset.ps.optimizers.schedule import Cosine
from cutset.tools.config.config_file import load_config
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.prepare import prepare
from cutset.tools.samples.read_samples import read_split
from cutset.tools.task.load_task import TaskSpec, load_task
from cutset.tools.train import run

TASK = f"{USER_MODELS / 'datasets.py'}:loader"
SCHEDULE = "cosine:warmup=0.25,final=0.1"


def options(out: Path, method: str = "sync", *, checkpoint_every: int = 5) -> RunConfig:
    return RunConfig(
        TASK,
        method=parse_method(method),
        optimizer="sgd:momentum=0.9",
        lr=0.1,
        lr_schedule=SCHEDULE,
        replicas=2,
        shards=2,
        epochs=3,
        checkpoint_every=checkpoint_every,
        baseline=False,
        out=out,
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 18 steps of 2 x 8 samples; an epoch has 6."""
    folder = tmp_path_factory.mktemp("whole")
    run(prepare(options(folder)))
    return folder


def test_it_is_what_a_plain_loop_computes(whole: Path) -> None:
    task, stream = load_task(TaskSpec(TASK)), SampleStream(96, batch=8, seed=0)
    samples, model = read_split(task, "train"), task.build(seed=0)
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = LambdaLR(plain, lambda step: max(1e-12, Cosine(0.25, 0.1).factor(step / 18)))
    for step in range(18):
        plain.zero_grad()
        for number in (2 * step, 2 * step + 1):
            batch = samples.rows(stream.indices(number), stream.epochs(number))
            (task.loss(batch.call(model), *batch.targets) / 2).backward()  # type: ignore[no-untyped-call]
        plain.step()
        schedule.step()
    for name, value in weights(whole).items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("step", with_slow([10], [5]))
def test_it_goes_on_in_the_middle_of_an_epoch_with_the_same_bits(whole: Path, tmp_path: Path, step: int) -> None:
    middle = whole / "checkpoints" / f"{step // 5:06}"
    run(prepare(replace(options(tmp_path), resume=middle)))
    expected = weights(whole)
    assert all(torch.equal(value, expected[name]) for name, value in weights(tmp_path).items())


def test_the_schedule_is_recorded_as_it_was_given(whole: Path, tmp_path: Path) -> None:
    assert load_config(whole).lr_schedule == SCHEDULE
    given = replace(options(tmp_path), lr_schedule=Cosine(0.25, 0.1))
    prepare(given)
    assert load_config(tmp_path).lr_schedule == Cosine(0.25, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["downpour", "ssp:staleness=1", "averaging:every=3", "diloco:every=3", "easgd:every=3", "hogwild"]
)
def test_all_methods_learn_by_a_schedule(tmp_path: Path, method: str) -> None:
    """Also where nothing changes any more in the second half."""
    for number, schedule in enumerate((None, "linear", "step:every=0.5,gamma=0.0")):
        given = options(tmp_path / str(number), method, checkpoint_every=0)
        given = replace(given, lr_schedule=schedule, epochs=30)
        result = run(prepare(given))
        assert result["test_accuracy"] > 0.45, schedule
    late = [point["test_loss"] for point in result["rows"][-1]["curve"][20:]]
    if method in ("ssp:staleness=1", "averaging:every=3", "hogwild"):
        assert max(late) - min(late) < 1e-6
