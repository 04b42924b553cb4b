"""Samples are padded to the smallest length that holds them, and batches are of one bucket."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from cutset.models.buckets import Buckets
from cutset.models.sample_stream import SampleStream
from cutset.models.task import TaskError


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
@pytest.mark.run
def test_a_batch_is_what_pad_sequence_gives_filled_up_to_a_bucket(sizes: list[int]) -> None:
    samples = [(torch.randn(size, 2), torch.arange(size), number) for number, size in enumerate(sizes)]
    inputs, found, labels, numbers = Buckets([9, 3, 5], pad={0: 0, 1: -100}, measured=True)(samples)
    length = min(one for one in (3, 5, 9) if one >= max(sizes))
    expected = pad_sequence([*(one for one, _, _ in samples), torch.zeros(length, 2)], batch_first=True)[:-1]
    assert inputs.equal(expected)
    assert found.tolist() == sizes
    assert numbers.tolist() == list(range(len(sizes)))
    assert (labels == -100).sum(1).tolist() == [length - size for size in sizes]
    assert [row[:size].tolist() for row, size in zip(labels, sizes, strict=True)] == [list(range(n)) for n in sizes]


def test_parts_are_padded_by_name() -> None:
    batch = Buckets([2, 4], pad={"ids": 0, "labels": -100}, measured=True)(
        [{"ids": [1], "labels": [5], "id": 3}, {"ids": [1, 2, 3], "labels": [5, 6, 7], "id": 4}]
    )
    assert {name: part.tolist() for name, part in batch.items()} == {
        "ids": [[1, 0, 0, 0], [1, 2, 3, 0]],
        "labels": [[5, -100, -100, -100], [5, 6, 7, -100]],
        "id": [3, 4],
        "lengths": [1, 3],
    }
    assert Buckets([2, 4])([torch.ones(1), torch.ones(2)]).tolist() == [[1, 0], [1, 1]]


def test_what_fits_in_no_bucket_is_named() -> None:
    with pytest.raises(TaskError, match=r"5 elements is longer than 4"):
        Buckets([2, 4])([torch.ones(5)])
    with pytest.raises(TaskError, match=r"5 elements is longer than 4"):
        Buckets([2, 4]).fit([torch.ones(1), torch.ones(5)], 2)
    assert Buckets([2, 4]).fit([torch.ones(3)], 2).tolist() == [[1, 1]]
    with pytest.raises(TaskError, match=r"\[2, 3\] elements long"):
        Buckets([4], pad={0: 0, 1: 0})([(torch.ones(2), torch.ones(3))])
    with pytest.raises(TaskError, match=r"cannot be padded to \[\]"):
        Buckets([])


@given(
    buckets=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    batch=st.integers(1, 9),
    seed=st.integers(0, 99),
    epochs=st.integers(1, 4),
)
def test_every_sample_once_in_an_epoch_and_batches_of_one_bucket(
    buckets: list[int], batch: int, seed: int, epochs: int
) -> None:
    count = len(buckets)
    stream = SampleStream(count, batch=batch, seed=seed, buckets=buckets)
    steps = stream.steps(epochs)
    batches = [stream.indices(step).tolist() for step in range(steps)]
    drawn = [number for one in batches for number in one]
    for start in range(0, len(drawn) - count + 1, count):
        assert sorted(drawn[start : start + count]) == list(range(count))
    assert 0 <= epochs * count - len(drawn) < batch
    mixed = sum(len({buckets[number] for number in one}) > 1 for one in batches)
    # In an epoch what is left of each bucket but the longest, and a batch that reaches over its end.
    assert mixed <= epochs * len(set(buckets))
    again = SampleStream(count, batch=batch, seed=seed, buckets=buckets)
    assert [again.indices(step).tolist() for step in reversed(range(steps))] == batches[::-1]


@pytest.mark.parametrize("first", [8, 24, 40])
def test_other_replicas_find_the_same_batches(first: int) -> None:
    """Of which they count from another step; an epoch does not end with a batch here."""
    buckets = [number % 3 for number in range(101)]
    before = SampleStream(101, batch=8, seed=0, buckets=buckets)
    after = SampleStream(101, batch=8, seed=0, buckets=buckets, first=first)
    for step in range(40):
        assert after.indices(step).tolist() == before.indices(step + first // 8).tolist()


def test_the_order_of_lengths_differs_from_epoch_to_epoch() -> None:
    buckets = [number % 3 for number in range(240)]
    stream = SampleStream(240, batch=8, seed=0, buckets=buckets)
    of_batches = [buckets[int(stream.indices(step)[0])] for step in range(60)]
    assert of_batches[:30] != of_batches[30:]
    assert sorted(of_batches[:30]) == sorted(of_batches[30:]) == sorted([0, 1, 2] * 10)
