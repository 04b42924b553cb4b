"""Samples of datasets: the same batch whoever reads it, whatever a sample draws; and what is wrong, in words."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from launched import gone
from marking import with_slow
from places import USER_MODELS
from safetensors.torch import load_file
from torch import nn

from cutset.errors import BadInput, ProcessLost
from cutset.models.sample_stream import SampleStream
from cutset.models.task import Data
from cutset.ps.methods.registry import parse_method
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.prepare import prepare
from cutset.tools.samples.batch_maker import unpack_batch
from cutset.tools.samples.dataset_samples import DatasetSamples
from cutset.tools.samples.read_samples import read_split
from cutset.tools.samples.reader_demand import ReaderDemand
from cutset.tools.samples.sample_loader import SampleLoader
from cutset.tools.task.load_task import TaskSpec, load_task
from cutset.tools.train import run

DATASETS = USER_MODELS / "datasets.py"


def split_of(name: str, split: str = "train", *, seed: int = 3) -> DatasetSamples:
    samples = read_split(load_task(TaskSpec(f"{DATASETS}:{name}")), split, seed=seed)
    assert isinstance(samples, DatasetSamples)
    return samples


def equal(a: Data, b: Data) -> bool:
    pairs = zip((*a.inputs, *a.targets), (*b.inputs, *b.targets), strict=True)
    return a.names == b.names and all(torch.equal(one, other) for one, other in pairs)


@given(st.lists(st.integers(0, 95), min_size=1, max_size=12), st.integers(0, 4))
@settings(deadline=None, max_examples=25)
def test_what_a_sample_draws_depends_on_seed_epoch_and_number_alone(numbers: list[int], epoch: int) -> None:
    samples, index = split_of("dataset"), torch.tensor(numbers)
    epochs = torch.full_like(index, epoch)
    whole = samples.rows(index, epochs)
    random.seed(epoch)
    parts = [split_of("dataset").rows(one[None], epochs[:1]) for one in index]
    assert torch.equal(whole.inputs[0], torch.cat([part.inputs[0] for part in parts]))
    assert not equal(whole, samples.rows(index, epochs + 1))
    assert not equal(whole, split_of("dataset", seed=4).rows(index, epochs))


def mix(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """A collate_fn that draws, from all generators, in what proportions it mixes neighbours."""
    part = random.random() + np.random.beta(1, 1) + float(torch.rand(()))
    x = torch.stack([x for x, _ in samples])
    return part * x + (1 - part) * x.roll(1, 0), torch.tensor([y for _, y in samples])


def test_what_collate_draws_depends_on_seed_epoch_and_batch_alone() -> None:
    data = [(torch.full((2,), float(number)), number) for number in range(8)]  # which draw nothing
    task = load_task(TaskSpec(f"{DATASETS}:dataset"))
    index = torch.arange(4)

    def read(seed: int, epoch: int, first: int) -> torch.Tensor:
        samples = DatasetSamples(task, "train", data, collate=mix, seed=seed)
        samples.rows(index)  # of another batch
        read: torch.Tensor = samples.rows(index + first, torch.full_like(index, epoch)).inputs[0] - first
        return read

    assert torch.equal(read(0, 0, 0), read(0, 0, 0))
    assert len({tuple(read(*where).flatten().tolist()) for where in ((0, 0, 0), (0, 0, 4), (0, 1, 0), (1, 0, 0))}) == 4


def test_the_generators_of_the_process_are_left_alone() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    seed()
    expected = draw()
    seed()
    split_of("dataset").rows(torch.arange(5))
    assert draw() == expected


@pytest.fixture
def stream() -> SampleStream:
    return SampleStream(96, batch=8, seed=3)


@pytest.mark.parametrize("name", ["dataset", "loader", "named"])
def test_processes_read_what_this_one_does_in_any_order(name: str, stream: SampleStream) -> None:
    samples = split_of(name)
    with SampleLoader(samples, stream) as loader, SampleLoader(split_of("in_between"), stream) as alone:
        for number in (0, 1, 2, 30, 3, 14):
            found = loader.read(number, range(number + 1, number + 1 + loader.ahead))
            expected = samples.rows(stream.indices(number), stream.epochs(number))
            assert equal(found, expected)
            if name != "named":
                assert equal(found, alone.read(number))


def test_batches_that_a_method_skips_are_given_up(stream: SampleStream) -> None:
    samples = split_of("loader")
    with SampleLoader(samples, stream) as loader:
        for number in (0, 20, 40, 60):
            found = loader.read(number, range(number + 1, number + 1 + loader.ahead))
            assert equal(found, samples.rows(stream.indices(number), stream.epochs(number)))
        assert len(loader._reading) == loader.ahead


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.uint8, torch.complex64, torch.float64])
def test_all_dtypes_pass_between_processes(dtype: torch.dtype) -> None:
    values = [(torch.ones(2, 3).to(dtype), torch.tensor(n)) for n in range(8)]
    task = replace(load_task(TaskSpec(f"{DATASETS}:dataset")), data=lambda split: values)
    with SampleLoader(read_split(task, "train"), SampleStream(8, batch=4, seed=0)) as loader:
        found = loader.read(0)
    assert found.inputs[0].dtype == dtype
    assert torch.equal(found.inputs[0], torch.ones(4, 2, 3).to(dtype))


class UpAndDown(ReaderDemand):
    """Twice as many read each batch, and then half as many."""

    def __init__(self, count: int, most: int) -> None:
        super().__init__(count, most)
        self._wanted = iter([min(wanted, most) for wanted in (4, 8, 8, 4, *[2] * 12)])

    def note(self, waited_s: float) -> None:
        self.count = next(self._wanted)


@pytest.mark.parametrize(("name", "most"), [("dataset", 8), ("plain_loader", 8), ("loader", 2)])
def test_more_or_fewer_processes_read_the_same_unless_the_user_says_how_many(
    name: str, most: int, stream: SampleStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutset.tools.samples.sample_loader.ReaderDemand", UpAndDown)
    samples, counts, pids = split_of(name), list[int](), set[int]()
    with SampleLoader(samples, stream) as loader:
        for number in range(16):
            found = loader.read(number, range(number + 1, number + 1 + loader.ahead))
            assert equal(found, samples.rows(stream.indices(number), stream.epochs(number)))
            counts.append(len(loader.pids))
            pids |= set(loader.pids)
    assert counts[:4] == [min(wanted, most) for wanted in (2, 4, 8, 8)]
    assert counts[-1] == 2
    assert len(pids) == most
    assert all(gone(pid, timeout_s=10.0) for pid in pids)


def test_the_processes_end_with_the_loader(stream: SampleStream) -> None:
    with SampleLoader(split_of("loader"), stream) as loader:
        loader.read(0, [1, 2])
        pids = loader.pids
        assert len(pids) == 2
    assert all(gone(pid, timeout_s=10.0) for pid in pids)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "failing(how='raise')",
            [r"sample 40 of the train data of task points fails at .*datasets.py:\d+", "sector 17"],
        ),
        ("failing(how='nan')", ["sample 40 of the train data of task points has a value that is not finite"]),
        (
            "failing(how='shape')",
            [r"sample 40 of the train data of task points is float32\[3\] and int, sample 41 is float32\[6\] and int"],
        ),
        ("shrinking", ["had 96 samples when the run began, and has 88 now"]),
    ],
)
def test_a_sample_that_will_not_do_is_named(name: str, said: list[str], stream: SampleStream) -> None:
    samples = split_of(name)

    def read_all() -> None:
        for first in range(0, 96, 8):
            samples.rows(torch.arange(first, first + 8))

    with pytest.raises(BadInput) as caught:
        read_all()
    for words in said:
        assert caught.match(words)


def test_a_process_that_dies_while_it_reads_is_named() -> None:
    """And one that fails does so with its own error."""
    in_order = SampleStream(41, batch=41, seed=0)
    with SampleLoader(split_of("failing(how='die')"), in_order) as loader:
        with pytest.raises(
            ProcessLost, match=r"a process that read the train data of task points was killed by SIGKILL"
        ) as caught:
            loader.read(0)
        assert "loaders=0" in caught.value.fix
    failing = split_of("failing(how='raise')")
    with SampleLoader(failing, in_order) as loader, pytest.raises(BadInput, match="sector 17"):
        loader.read(0)


@pytest.mark.parametrize(("name", "said"), [("weighted", "WeightedRandomSampler"), ("tuple_of_tensors", "a tuple")])
def test_what_would_train_on_something_else_is_refused(name: str, said: str) -> None:
    with pytest.raises(BadInput, match=f"E311: .*{said}"):
        split_of(name)


def test_how_a_batch_is_unpacked() -> None:
    x, y, z = torch.zeros(2, 3), torch.ones(2), torch.ones(2, 1)
    assert unpack_batch(x) == Data((x,), ())
    assert unpack_batch([x, z, y]) == Data((x, z), (y,))
    named = unpack_batch({"x": x, "text": ["a", "b"], "label": y})
    assert (named.inputs, named.targets, named.names) == ((x, y), (y,), ("x", "label"))
    with pytest.raises(ValueError, match="a batch is a set"):
        unpack_batch({1, 2})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.run
@pytest.mark.parametrize("name", with_slow(["loader"], ["named"]))
def test_a_cut_run_on_a_dataset_has_the_weights_of_plain_torch(tmp_path: Path, name: str) -> None:
    """Its own loop, by the numbers of the stream: two epochs of lock step."""
    options = RunConfig(
        f"{DATASETS}:{name}", machines=2, method=parse_method("sync"), lr=0.1, epochs=2, baseline=False, out=tmp_path
    )
    result = run(prepare(replace(options, optimizer="sgd")))
    task, samples, stream = (
        load_task(TaskSpec(f"{DATASETS}:{name}")),
        split_of(name, seed=0),
        SampleStream(96, batch=8, seed=0),
    )
    model = task.build(seed=0)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(stream.steps(2)):
        batch = samples.rows(stream.indices(step), stream.epochs(step))
        plain.zero_grad()
        task.loss(batch.call(model.train()), *batch.targets).backward()  # type: ignore[no-untyped-call]
        plain.step()
    for key, value in weights(tmp_path).items():
        torch.testing.assert_close(value, model.state_dict()[key], rtol=1e-5, atol=1e-6)
    tests = split_of(name, "test").rows(torch.arange(50))
    with torch.no_grad():
        output = tests.call(model.eval())
    logits = output["logits"] if name == "named" else output
    assert isinstance(logits, torch.Tensor)
    right = int((logits.argmax(1) == tests.targets[0]).sum())
    assert result["test_accuracy"] == right / 50
    if name == "loader":
        assert result["test_loss"] == pytest.approx(
            float(nn.functional.cross_entropy(logits, tests.targets[0])), rel=1e-5
        )


def test_batches_of_various_lengths_go_to_a_model_that_is_not_cut() -> None:
    """A collate_fn that pads to the longest of a batch; other numbers of dimensions are named all the same."""
    lengths = [3, 5, 2, 4]
    data = [(torch.ones(length), 0) for length in lengths] + [(torch.ones(2, 2), 0)]

    def collate(samples: list[Any]) -> Any:
        width = max(len(x) for x, _ in samples)
        return torch.stack([nn.functional.pad(x, (0, width - len(x))) for x, _ in samples]), torch.zeros(len(samples))

    task = load_task(TaskSpec(f"{USER_MODELS / 'datasets.py'}:loader"))
    free = DatasetSamples(task, "train", data, collate=collate, one_shape=False)
    assert [free.rows(torch.tensor(pair)).inputs[0].shape[1] for pair in ([0, 1], [2, 3])] == [5, 4]
    with pytest.raises(BadInput, match=r"2 dimensions.*beside"):
        free.rows(torch.tensor([4]))
    one = DatasetSamples(task, "train", data, collate=collate)
    one.rows(torch.tensor([0, 1]))
    with pytest.raises(BadInput, match="beside") as caught:
        one.rows(torch.tensor([2, 3]))
    assert "PadTo" in caught.value.fix
