"""Where parameters lie in a flat buffer, and of which dtype it is."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.errors import BadInput
from cutset.runtime.worker.flat_layout import find_one_dtype, sort_for_flat_buffer


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


@pytest.mark.parametrize(
    ("dtypes", "fix"),
    [(["float32", "float64"], r"model\.float\(\)"), (["float32", "complex64"], r"torch\.view_as_real\(w\)")],
)
def test_several_dtypes_are_refused_with_a_way_to_have_one(dtypes: list[str], fix: str) -> None:
    with pytest.raises(BadInput, match=rf"(?s)E342: the parameters have several dtypes: .*float32.*fix: .*{fix}"):
        find_one_dtype(dtypes)


def test_one_dtype_is_that_of_all() -> None:
    assert find_one_dtype(["float64", "float64"]) == "float64"
    assert find_one_dtype([]) == "float32"
