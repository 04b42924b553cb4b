"""Samples of various lengths become batches of one shape."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from cutset.models.padding import PadTo
from cutset.models.task import TaskError


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.floats(-2, 2, width=32))
def test_it_is_what_pad_sequence_gives_filled_up(lengths: list[int], value: float) -> None:
    samples = [(torch.randn(length, 3), number) for number, length in enumerate(lengths)]
    batch, found, numbers = PadTo(6, value=value, lengths=True)(samples)
    longest = torch.zeros(6, 3)  # so that torch pads to it
    expected = pad_sequence([*(one for one, _ in samples), longest], batch_first=True, padding_value=value)
    assert batch.equal(expected[:-1])
    assert found.tolist() == lengths
    assert numbers.tolist() == list(range(len(lengths)))


def test_parts_are_chosen_by_number_or_name() -> None:
    named = PadTo(4, part="ids", value=-1, lengths=True)([{"ids": [1, 2], "labels": 0}, {"ids": [3], "labels": 1}])
    assert named["ids"].tolist() == [[1, 2, -1, -1], [3, -1, -1, -1]]
    assert (named["lengths"].tolist(), named["labels"].tolist()) == ([2, 1], [0, 1])
    second = PadTo(2, 3, part=1)([(0.0, torch.ones(1, 2, 2)), (1.0, torch.ones(2, 3, 2))])
    assert second[1].shape == (2, 2, 3, 2)
    assert second[1][0, 1].abs().sum() == second[1][0, :, 2].abs().sum() == 0
    assert PadTo(3)([torch.ones(1), torch.ones(3)]).tolist() == [[1, 0, 0], [1, 1, 1]]


def test_a_sample_that_is_too_long_is_named() -> None:
    with pytest.raises(TaskError, match=r"shape \[5, 2\] is longer than \[4\]"):
        PadTo(4)([(torch.ones(5, 2), 0)])
    with pytest.raises(TaskError, match="cannot be padded"):
        PadTo(0)
