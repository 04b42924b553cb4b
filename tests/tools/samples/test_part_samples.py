"""Samples in parts: the same whoever reads them, in which order ever; every one once; and what is wrong, in words."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from marking import with_slow
from places import USER_MODELS
from torch import Tensor
from torch.utils.data import IterableDataset
from torch.utils.data._utils import worker as torch_worker

from cutset.errors import BadInput, CutsetError
from cutset.models.parts import Parts
from cutset.models.task import Data, Task
from cutset.ps.methods.registry import parse_method
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.prepare import prepare
from cutset.tools.samples.part_loader import PartLoader
from cutset.tools.samples.part_order import PartOrder, RestPool
from cutset.tools.samples.part_samples import PartEnd, PartReader, PartSamples, number_batch, take_first
from cutset.tools.samples.read_samples import read_samples, read_split
from cutset.tools.task.load_task import TaskSpec, load_task
from cutset.tools.train import run

COUNTING, STREAMS, BUCKETS = (USER_MODELS / f"{name}.py" for name in ("counting", "streams", "buckets"))


def stream_of(factory: str, *, seed: int = 3) -> PartSamples:
    samples = read_samples(load_task(TaskSpec(str(factory))), "train", seed=seed)
    assert isinstance(samples, PartSamples)
    return samples


def part(samples: PartSamples, track: int, batch: int) -> tuple[list[Tensor], PartEnd]:
    """All batches of a part, and its end."""
    reader, batches = PartReader(samples, track, batch), list[Tensor]()
    while not isinstance(found := reader.read(len(batches)), PartEnd):
        assert found is not None
        batches.append(found.inputs[0])
    return batches, found


def in_order(samples: PartSamples, batch: int, epochs: int) -> list[Data]:
    loader = PartLoader(samples, batch)
    try:
        return [one for one in PartOrder(loader, epochs).batches() if one is not None]
    finally:
        loader.close()


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("factory", ["unsized", "in_files", "undivided", "loaded"])
@given(count=st.integers(1, 60), batch=st.integers(1, 9), epochs=st.integers(1, 3))
@settings(deadline=None, max_examples=25)
def test_every_sample_comes_once_in_an_epoch_but_for_less_than_a_batch(
    factory: str, count: int, batch: int, epochs: int
) -> None:
    samples = stream_of(f"{COUNTING}:{factory}(count={count})")
    samples.processes = 0
    batches = in_order(samples, batch, epochs)
    assert {len(one) for one in batches} <= {batch}
    assert len(batches) == epochs * count // batch
    counts = torch.cat([torch.zeros(0, dtype=torch.int64), *(one.inputs[0] for one in batches)]).bincount(
        minlength=count
    )
    assert int(counts.max()) <= epochs
    assert int(epochs * count - counts.sum()) < batch


@given(st.integers(0, 3), st.integers(0, 2), st.lists(st.integers(0, 3), max_size=6))
@settings(deadline=None, max_examples=25)
def test_what_is_read_does_not_depend_on_what_was_read_before(epoch: int, number: int, places: list[int]) -> None:
    """Also what samples draw at random."""
    samples = stream_of(f"{STREAMS}:wrong(how='',parts=3)")
    track = epoch * 3 + number
    batches, end = part(samples, track, 7)
    assert (len(batches), end.count(7)) == (4, 30)
    reader = PartReader(stream_of(f"{STREAMS}:wrong(how='',parts=3)"), track, 7)
    random.seed(epoch)
    before = random.getstate()
    for place in places:
        found = reader.read(place)
        assert isinstance(found, Data)
        assert torch.equal(found.inputs[0], batches[place])
    assert random.getstate() == before
    other, _ = part(samples, track + 3, 7)
    assert not torch.equal(other[0], batches[0])


def test_processes_read_what_one_process_reads() -> None:
    one, several = (in_order(stream_of(f"{STREAMS}:{name}"), 8, 2) for name in ("in_between", "loader"))
    assert len(one) == len(several) == 22
    assert all(torch.equal(a.inputs[0], b.inputs[0]) for a, b in zip(one, several, strict=True))


def test_batches_that_are_not_wanted_are_passed_over() -> None:
    loader = PartLoader(stream_of(f"{STREAMS}:points"), 8)
    everything = in_order(stream_of(f"{STREAMS}:points"), 8, 1)
    some = list(PartOrder(loader, 1).batches(lambda place: place % 3 == 1))
    loader.close()
    assert len(some) == len(everything)
    for place, (found, batch) in enumerate(zip(some, everything, strict=True)):
        if place % 3 == 1:
            assert found is not None
            assert torch.equal(found.inputs[0], batch.inputs[0])


def test_the_end_of_a_part_comes_with_what_is_left_of_it() -> None:
    samples = stream_of(f"{COUNTING}:streamed(count=43)")
    assert (samples.parts, samples.total) == (8, 43)
    loader = PartLoader(samples, 4)
    end = loader.read(number_batch(2, 1))
    assert isinstance(end, PartEnd)
    assert end.batches == 1
    assert end.rest is not None
    assert end.rest.inputs[0].tolist() == [34, 42]
    again = loader.read(number_batch(2, 9))
    loader.close()
    assert isinstance(again, PartEnd)
    assert again.batches == 1


def test_batches_that_are_asked_for_beyond_an_end_do_not_read_the_part_again() -> None:
    opened = list[int]()

    def read(file: int) -> Iterator[tuple[Tensor, Tensor]]:
        opened.append(file)
        return ((torch.zeros(2), torch.zeros(())) for _ in range(10))

    task = replace(load_task(TaskSpec(f"{STREAMS}:points")), data=lambda split: Parts(range(3), read), loaders=0)
    samples = read_samples(task, "train", seed=0)
    assert isinstance(samples, PartSamples)
    opened.clear()
    loader = PartLoader(samples, 4)
    ends = [loader.read(number_batch(part, position)) for position in (2, 3, 4) for part in range(3)]
    assert [end.batches for end in ends if isinstance(end, PartEnd)] == [2] * 9
    assert opened == [0, 1, 2]


def test_no_batch_lies_in_shared_memory() -> None:
    """A reader that is killed while it makes such a batch leaves its file."""
    batches, end = part(stream_of(f"{STREAMS}:points"), 0, 8)
    assert end.rest is not None
    assert not any(inputs.is_shared() for inputs in [*batches, *end.rest.inputs, *end.rest.targets])


def test_parts_in_a_loader_are_those_of_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts([3, 1, 2], range, samples=6)
    assert list(parts) == [0, 1, 2, 0, 0, 1]
    for worker, samples in enumerate([[0, 1, 2, 0, 1], [0]]):
        info = torch_worker.WorkerInfo(id=worker, num_workers=2, seed=0, dataset=parts)
        monkeypatch.setattr(torch_worker, "_worker_info", info)
        assert list(parts) == samples


def test_a_stream_of_test_samples_is_kept_in_memory() -> None:
    assert len(read_split(load_task(TaskSpec(f"{STREAMS}:points")), "test")) == 90


class KeptInMemory(IterableDataset[Tensor]):
    """Its samples are an attribute of that name; how many there are it does not say."""

    def __init__(self, split: str) -> None:
        self.samples = [torch.tensor([float(number)]) for number in range(20)]

    def __iter__(self) -> Iterator[Tensor]:
        yield from self.samples


def test_what_a_dataset_has_under_the_name_samples_is_its_own() -> None:
    task = Task("kept", torch.nn.Identity, torch.nn.functional.mse_loss, data=KeptInMemory)
    known = [read_samples(replace(task, samples=samples), "train") for samples in (None, 20)]
    assert [getattr(samples, "total", "none") for samples in known] == [None, 20]


def test_rests_make_batches_in_their_order() -> None:
    pool = RestPool(4, "the data")
    rests: Iterator[list[int]] = iter([[1, 2], [3], [], [4, 5, 6], [7, 8]])
    made = [
        full.inputs[0].tolist() for rest in rests for full in pool.add(Data((torch.tensor(rest),)) if rest else None)
    ]
    assert (made, pool.count) == ([[1, 2, 3, 4], [5, 6, 7, 8]], 0)


def test_rests_of_parts_make_batches_whatever_their_lengths() -> None:
    batches = in_order(stream_of(f"{BUCKETS}:task(streamed=True)"), 4, 2)
    assert {batch.inputs[0].shape[1] for batch in batches} >= {8, 16}
    found = Counter(tuple(row[row > 0].tolist()) for batch in batches for row in batch.inputs[0])
    once = Counter(sentences_of_buckets())
    assert found == once + once


def sentences_of_buckets() -> list[tuple[int, ...]]:
    data = load_task(TaskSpec(f"{BUCKETS}:task")).data
    assert data is not None
    return [tuple(words.tolist()) for words, _ in data("train").dataset]


def test_an_example_of_a_length_is_of_samples_that_fit() -> None:
    for streamed in (False, True):
        samples = read_samples(load_task(TaskSpec(f"{BUCKETS}:task(streamed={streamed})")), "train")
        whole = set(sentences_of_buckets())
        for length in (4, 8, 16):
            batch = take_first(samples, 8, length)
            assert batch.inputs[0].shape == (8, length)
            assert {tuple(row[row > 0].tolist()) for row in batch.inputs[0]} <= whole
        assert {tuple(row[row > 0].tolist()) for row in take_first(samples, 90, 16).inputs[0]} == whole


# What is wrong is said in the user's words ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("wrong(how='nothing')", "the train data of task points yields no sample"),
        ("read_once", "the train data of task points is a generator, which can be read only once"),
        ("whole_batches", "the DataLoader for the train data of task points has batch_size=None"),
    ],
)
def test_what_is_wrong_is_found_before_anything_starts(tmp_path: Path, factory: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        prepare(RunConfig(f"{STREAMS}:{factory}", baseline=False, out=tmp_path / "run"))
    assert caught.value.code == "E311"
    assert words in caught.value.facts


@pytest.mark.run
@pytest.mark.parametrize("method", with_slow(["downpour"], ["sync"]))
@pytest.mark.parametrize(
    ("how", "words"),
    with_slow(
        [
            ("raises", "sample 13 of part 1 of 3 of the train data of task points"),
        ],
        [
            ("nan", "sample 13 of part 1 of 3 of the train data of task points has a value that is not finite"),
            ("shape", "part 1 of 3"),
            ("shrinks", "part 0 of the train data of task points had 29 samples in epoch 0, and has"),
            ("endless", "yields more samples than the 90 that it says it has, or never ends"),
        ],
    ),
)
def test_what_is_wrong_in_the_middle_ends_the_run(tmp_path: Path, how: str, words: str, method: str) -> None:
    options = RunConfig(
        f"{STREAMS}:wrong(how={how!r})", method=parse_method(method), epochs=2, baseline=False, out=tmp_path / "run"
    )
    with pytest.raises(CutsetError) as caught:
        run(prepare(options))
    assert caught.value.code == "E311"
    assert words in caught.value.facts


def test_a_schedule_needs_to_know_how_long_the_run_is(tmp_path: Path) -> None:
    options = RunConfig(f"{COUNTING}:unsized(count=90)", lr_schedule="cosine", baseline=False, out=tmp_path / "run")
    with pytest.raises(CutsetError) as caught:
        prepare(options)
    assert caught.value.code == "E258"
    assert prepare(replace(options, task=f"{COUNTING}:streamed(count=90)")).training.samples == 90
