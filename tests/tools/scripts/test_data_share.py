"""Replicas that share a loader see each batch of an epoch once, and go on where they were."""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from cutset.errors import BadInput
from cutset.tools.job.stream_position import LoopPass, LoopPosition
from cutset.tools.scripts.data_share import share_loader
from cutset.tools.scripts.loop_counts import LoopCounts


def batches(loader: Any) -> list[list[int]]:
    return [[int(n) for n in batch[0]] for batch in loader]


def loader_of(count: int, size: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(count)), batch_size=size, **options)


@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 4), st.integers(0, 9))
@settings(deadline=None, max_examples=40)
@pytest.mark.run
def test_each_batch_of_an_epoch_is_of_one_replica(count: int, size: int, replicas: int, seed: int) -> None:
    shares = [
        share_loader(loader_of(count, size, shuffle=True), r, replicas, seed=seed, counts=LoopCounts())
        for r in range(replicas)
    ]
    epochs = [[batches(share) for share in shares] for _ in range(2)]
    for parts in epochs:
        assert sorted(n for part in parts for batch in part for n in batch) == list(range(count))
    assert [len(share) for share in shares] == [len(part) for part in epochs[0]]
    if count > 20:
        assert epochs[0] != epochs[1], "each epoch is drawn anew"


@pytest.mark.run
@given(st.integers(5, 40), st.integers(1, 7), st.integers(1, 3), st.integers(0, 30))
@settings(deadline=None, max_examples=40)
def test_a_replica_that_goes_on_sees_what_was_left(count: int, size: int, replicas: int, taken: int) -> None:
    def read(counts: LoopCounts) -> list[list[int]]:
        share = share_loader(loader_of(count, size, shuffle=True), replicas - 1, replicas, seed=5, counts=counts)
        return [batch for _ in range(4) for batch in batches(share)]

    whole = read(LoopCounts())
    counts = LoopCounts()
    counts.begin_at(taken, LoopPosition())  # nothing is known of its passes: a batch for each step, then
    assert read(counts) == whole[taken:]


class Scheduler:
    calls = 0

    def step(self) -> None:
        self.calls += 1


def run_epochs(counts: LoopCounts, epochs: int, order: list[str], *, begin: int = 0, stop: int = 0) -> dict[str, int]:
    """Loop with a scheduler that is called for each batch, one for every other and one after each epoch."""
    schedulers = {name: Scheduler() for name in order}
    for scheduler in schedulers.values():
        counts.watch(scheduler)
    share, steps = share_loader(loader_of(20, 2), 0, 1, seed=0, counts=counts), begin
    for _ in range(epochs):
        for _ in share:
            counts.take_step()
            steps += 1
            schedulers["batch"].step()
            if steps % 2 == 0:
                schedulers["second"].step()
            if steps == stop:
                return {name: one.calls for name, one in schedulers.items()}
        schedulers["epoch"].step()
    return {name: one.calls for name, one in schedulers.items()}


@pytest.mark.parametrize("order", [["batch", "epoch", "second"], ["epoch", "second", "batch"]])
def test_each_scheduler_goes_on_as_often_as_it_was_called(order: list[str]) -> None:
    """Those between two epochs are called by whoever goes on by itself."""
    counts, stop = LoopCounts(), 16
    assert run_epochs(counts, 3, order, stop=stop) == {"batch": 16, "second": 8, "epoch": 1}
    assert dict(zip(order, counts.calls, strict=True)) == {"batch": 16, "second": 8, "epoch": 0}
    later = LoopCounts()
    later.begin_at(stop, LoopPosition(counts.passes, [calls / stop for calls in counts.calls]))
    assert run_epochs(later, 3, order, begin=stop) == run_epochs(LoopCounts(), 3, order)
    assert dict(zip(order, later.calls, strict=True)) == {"batch": 30, "second": 15, "epoch": 0}


class UserLoop(NamedTuple):
    """A loop as a user writes it, over batches of one sample each.

    leaves_at: the batch at which it leaves each pass, before its step. accumulate: batches for a step. tests: whether
    it reads all once more after each epoch, without a step. at_end: whether it takes its steps after the passes.
    is_one_iterator: whether its passes go on where the last one left.
    """

    size: int
    replicas: int
    replica: int
    epochs: int
    leaves_at: int | None
    accumulate: int
    tests: bool
    at_end: bool
    is_one_iterator: bool

    def run(self, counts: LoopCounts, stop: int = -1) -> tuple[list[list[int]], list[LoopPass]]:
        """Return the samples of each step until so many were taken, and the passes as they were then."""
        source: Any = loader_of(self.size, 1, shuffle=True)
        if self.is_one_iterator:
            source = iter([[torch.tensor([number])] for number in range(self.size * self.epochs)])
        share = share_loader(source, self.replica, self.replicas, seed=3, counts=counts)
        steps, gathered, passes = list[list[int]](), list[int](), list[LoopPass]()
        for _ in range(self.epochs):
            for place, batch in enumerate(share):
                if place == self.leaves_at:
                    break
                gathered.append(int(batch[0]))
                if not self.at_end and (place + 1) % self.accumulate == 0:
                    counts.take_step()
                    steps, gathered, passes = [*steps, gathered], [], counts.passes
                    if len(steps) == stop:
                        return steps, passes
            if self.at_end and not counts.take_step():
                steps, gathered, passes = [*steps, gathered], [], counts.passes
                if len(steps) == stop:
                    return steps, passes
            gathered = []
            for _ in share if self.tests else ():
                pass
        return steps, counts.passes


@pytest.mark.run
@given(
    st.builds(
        UserLoop,
        size=st.integers(1, 12),
        replicas=st.integers(1, 3),
        replica=st.integers(0, 2),
        epochs=st.integers(2, 5),
        leaves_at=st.none() | st.integers(1, 6),
        accumulate=st.integers(1, 3),
        tests=st.booleans(),
        at_end=st.booleans(),
        is_one_iterator=st.booleans(),
    ),
    st.integers(1, 60),
)
@settings(deadline=None, max_examples=150)
def test_a_loop_that_begins_anew_takes_the_steps_that_were_left(loop: UserLoop, stop: int) -> None:
    """But for the first pass in which there are steps, where nobody can know whether the loop will leave it."""
    assume(loop.replica < loop.replicas)
    assume(not (loop.tests and loop.is_one_iterator))
    whole, passes = loop.run(LoopCounts())
    first = next((one.all_steps for one in passes if one.all_steps), 0)
    assume(stop <= len(whole) and (loop.leaves_at is None or loop.at_end or stop > first))
    steps, position = loop.run(LoopCounts(), stop)
    assert steps == whole[:stop]
    later = LoopCounts()
    later.begin_at(stop, LoopPosition(position))
    assert loop.run(later) == (whole[stop:], passes)


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        yield from torch.arange(10)[:, None]


def test_a_stream_is_read_by_all_and_shared() -> None:
    loader = DataLoader(Stream(), batch_size=3)
    shares = [share_loader(loader, replica, 2, seed=0, counts=LoopCounts()) for replica in range(2)]
    seen = [[int(n) for batch in share for n in batch] for share in shares]
    assert seen == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9]]


class Shuffling(IterableDataset[Tensor]):
    """Draws its order from the generators of this process."""

    def __iter__(self) -> Iterator[Tensor]:
        numbers = list(range(40))
        random.shuffle(numbers)
        for number in numbers[:20]:
            yield torch.tensor([number, np.random.randint(1000), int(torch.randint(1000, ()))])


def make_shuffled(kind: str) -> Any:
    if kind == "stream":
        return DataLoader(Shuffling(), batch_size=4)
    data = TensorDataset(torch.arange(40))
    if kind == "batch_sampler":
        return DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 4, drop_last=False))
    return DataLoader(data, batch_size=4, sampler=WeightedRandomSampler(torch.ones(40), 40, replacement=False))


@pytest.mark.parametrize("kind", ["batch_sampler", "weighted", "stream"])
def test_replicas_that_draw_other_numbers_agree_on_the_order(kind: str) -> None:
    """Each seeds its generators as it likes; what all of them read together is what one alone reads."""

    def read(replica: int, replicas: int, own_seed: int) -> list[list[Any]]:
        torch.manual_seed(own_seed)
        random.seed(own_seed)
        np.random.seed(own_seed)
        share = share_loader(make_shuffled(kind), replica, replicas, seed=3, counts=LoopCounts())
        epochs = [[torch.as_tensor(b[0] if isinstance(b, list) else b).tolist() for b in share] for _ in range(2)]
        assert random.random() == random.Random(own_seed).random(), "the script's own draws are left alone"
        return epochs

    whole = read(0, 1, 17)
    parts = [read(replica, 2, replica) for replica in range(2)]
    assert whole[0] != whole[1], "each epoch is drawn anew"
    for epoch in range(2):
        assert [parts[n % 2][epoch][n // 2] for n in range(len(whole[epoch]))] == whole[epoch]


def test_data_that_is_divided_already_is_refused() -> None:
    data = TensorDataset(torch.arange(10))
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=2, rank=0)
    with pytest.raises(BadInput, match="DistributedSampler") as caught:
        share_loader(DataLoader(data, sampler=sampler), 0, 2, seed=0, counts=LoopCounts())
    assert caught.value.code == "E362"
