"""Training on streams: what a plain loop computes, the same bits after a resumption, every sample once with others."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from marking import with_slow
from places import USER_MODELS
from safetensors.torch import load_file

from cutset.errors import CutsetError
from cutset.ps.methods.registry import parse_method
from cutset.ps.optimizers.standard import SGD
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.prepare import prepare
from cutset.tools.samples.part_samples import PartEnd, PartReader, PartSamples
from cutset.tools.samples.read_samples import read_samples
from cutset.tools.task.load_task import TaskSpec, load_task
from cutset.tools.train import run

STREAM = f"{USER_MODELS / 'streams.py'}:points"
COUNTING = USER_MODELS / "counting.py"
COUNT = 203


def options(out: Path, task: str = STREAM, method: str = "sync", **more: object) -> RunConfig:
    given = RunConfig(task, method=parse_method(method), replicas=2, shards=2, epochs=3, baseline=False, out=out)
    return replace(given, **{"optimizer": "sgd:momentum=0.9", "lr": 0.1, **more})  # type: ignore[arg-type]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 16 steps of 2 x 8 samples; an epoch has 90."""
    folder = tmp_path_factory.mktemp("whole")
    run(prepare(options(folder, checkpoint_every=3)))
    return folder


def batches_in_turn() -> list[torch.Tensor]:
    """The batches of three epochs of 8 parts, read by hand, with what is left of parts where it is enough."""
    samples = read_samples(load_task(TaskSpec(STREAM)), "train")
    assert isinstance(samples, PartSamples)
    found, left = [], []
    for epoch in range(3):
        readers = [(PartReader(samples, 8 * epoch + part, 8), [0]) for part in range(8)]
        while readers:
            reader, at = readers.pop(0)
            batch = reader.read(at[0])
            if isinstance(batch, PartEnd):
                left += (
                    [] if batch.rest is None else list(zip(batch.rest.inputs[0], batch.rest.targets[0], strict=True))
                )
                while len(left) >= 8:
                    found.append(tuple(map(torch.stack, zip(*left[:8], strict=True))))
                    del left[:8]
            else:
                assert batch is not None
                found.append((batch.inputs[0], batch.targets[0]))
                at[0] += 1
                readers.append((reader, at))
    return found  # type: ignore[return-value]


def check_plain_loop(folder: Path, steps: list[int]) -> None:
    """Compare with a plain loop whose steps take so many batches each."""
    task, batches = load_task(TaskSpec(STREAM)), batches_in_turn()
    assert len(batches) == 33
    model = task.build(seed=0)
    plain, following = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), iter(batches)
    for count in steps:
        plain.zero_grad()
        for inputs, targets in islice(following, count):
            (task.loss(model(inputs), targets) / count).backward()  # type: ignore[no-untyped-call]
        plain.step()
    for name, value in weights(folder).items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-5, atol=1e-6)


@pytest.mark.run
def test_it_is_what_a_plain_loop_computes(whole: Path) -> None:
    check_plain_loop(whole, [2] * 16)


@pytest.mark.run
def test_other_replicas_begin_with_the_first_batch_that_was_left(whole: Path, tmp_path: Path) -> None:
    """After 18 batches, which are four steps and a half of four replicas."""
    run(prepare(options(tmp_path, resume=whole / "checkpoints" / "000003", replicas=4)))
    check_plain_loop(tmp_path, [2] * 9 + [4] * 3)


@pytest.mark.run
@pytest.mark.parametrize("number", with_slow([3], [4]))
def test_it_goes_on_in_the_middle_of_an_epoch_with_the_same_bits(whole: Path, tmp_path: Path, number: int) -> None:
    run(prepare(options(tmp_path, resume=whole / "checkpoints" / f"{number:06}")))
    expected = weights(whole)
    assert all(torch.equal(value, expected[name]) for name, value in weights(tmp_path).items())


@pytest.mark.slow
def test_a_run_that_leases_goes_on_with_other_replicas_and_counts_every_sample_once(tmp_path: Path) -> None:
    """Parts whose last samples were no full batch are read to their end again."""
    task = f"{COUNTING}:in_files(count={COUNT})"
    first = options(tmp_path / "first", task, "downpour", optimizer=SGD(1.0), lr=None, epochs=1)
    run(prepare(first))
    assert int(weights(tmp_path / "first")["weight"].sum()) == COUNT - COUNT % 4
    run(prepare(replace(first, epochs=3, replicas=3, resume=tmp_path / "first", out=tmp_path / "then")))
    counts = weights(tmp_path / "then")["weight"]
    assert int(counts.max()) == 3
    assert int(counts.sum()) == 3 * COUNT - 3 * COUNT % 4


@pytest.mark.run
@pytest.mark.parametrize("method", ["downpour", "sync"])
def test_a_checkpoint_of_other_parts_is_refused(whole: Path, tmp_path: Path, method: str) -> None:
    with pytest.raises(CutsetError) as caught:
        prepare(options(tmp_path, f"{USER_MODELS / 'streams.py'}:wrong(how='',parts=3)", method, resume=whole))
    assert caught.value.code == ("E289" if method == "sync" else "E292")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["downpour", "sync"])
def test_the_machines_of_a_replica_read_the_same(tmp_path: Path, method: str) -> None:
    result = run(prepare(options(tmp_path, method=method, machines=2, epochs=6)))
    assert result["rows"][-1]["samples"] == 6 * 90 // 16 * 16


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ssp:staleness=1", "averaging:every=3", "easgd:every=2", "hogwild", "allreduce"])
def test_all_methods_train_on_streams(tmp_path: Path, method: str) -> None:
    result = run(prepare(options(tmp_path, method=method, epochs=20)))
    assert result["test_accuracy"] > 0.6
