"""Where parameters lie in a flat buffer, and of which dtype it is."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutset.errors import BadInput
from cutset.runtime.worker.flat_layout import find_flat_dtype, sort_for_flat_buffer


@given(st.lists(st.integers(0, 20)))
def test_whatever_may_be_pairs_of_numbers_begins_at_an_even_place(counts: list[int]) -> None:
    pieces = list(enumerate(counts))
    ordered = sort_for_flat_buffer(pieces, lambda piece: piece[1])
    assert sorted(ordered) == pieces
    begins = itertools.accumulate((count for _, count in ordered), initial=0)
    assert all(begin % 2 == 0 for begin, (_, count) in zip(begins, ordered, strict=False) if count % 2 == 0)
    even, odd = ([i for i, count in ordered if count % 2 == rest] for rest in (0, 1))
    assert even == sorted(even)
    assert odd == sorted(odd)


def test_complex_parameters_beside_others_are_refused_with_a_way_to_have_one_dtype() -> None:
    words = r"E342: the parameters have the dtypes complex64, float32\n  fix: .*torch\.view_as_real\(w\)"
    with pytest.raises(BadInput, match=words):
        find_flat_dtype([torch.float32, torch.complex64])


@pytest.mark.parametrize(
    ("dtypes", "flat"),
    [
        ([], torch.float32),
        ([torch.float64, torch.float64], torch.float64),
        ([torch.complex64], torch.complex64),
        ([torch.bfloat16], torch.float32),
        ([torch.float16, torch.bfloat16], torch.float32),
        ([torch.bfloat16, torch.float32], torch.float32),
        ([torch.float32, torch.float64], torch.float64),
    ],
    ids=str,
)
def test_the_buffer_holds_all_parameters_unrounded(dtypes: list[torch.dtype], flat: torch.dtype) -> None:
    assert find_flat_dtype(dtypes) == flat
