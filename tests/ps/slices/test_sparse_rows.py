"""Sparse rows: on the wire, their mean, steps with them, and what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutset.ps.slices.slicing import ParameterSlice
from cutset.ps.slices.sparse_rows import SparseRows, descend, install_rows, mean_gradient, parse_rows

PIECE = ParameterSlice(0, 0, 0, 12, 0, 3)
SEEDS = st.integers(0, 10_000)


def rows_of(seed, count=None):
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(0, 5, (), generator=generator)) if count is None else count
    numbers = torch.randperm(4, generator=generator)[:count].sort().values
    return SparseRows(numbers, torch.randn((count, 3), generator=generator, dtype=torch.float64))


@settings(max_examples=30, deadline=None)
@given(st.lists(SEEDS, min_size=1, max_size=4), st.booleans())
def test_the_mean_equals_that_of_dense_gradients(seeds, one_dense):
    gradients = [rows_of(seed) for seed in seeds]
    dense = [rows.to_dense(12) for rows in gradients]
    given_ = [dense[0], *gradients[1:]] if one_dense else gradients
    found = mean_gradient(given_, 12)
    assert isinstance(found, SparseRows) != one_dense
    found = found.to_dense(12) if isinstance(found, SparseRows) else found
    torch.testing.assert_close(found, torch.stack(dense).mean(0), rtol=1e-14, atol=1e-15)


@settings(max_examples=30, deadline=None)
@given(SEEDS, SEEDS)
def test_a_descent_is_dense_or_among_some_rows(seed, other):
    rows, among = rows_of(seed), rows_of(other)
    plain, marked = torch.arange(12.0, dtype=torch.float64), torch.zeros(12, dtype=torch.bool)
    marked.view(4, 3)[among.numbers] = True
    for gradient in (rows, rows.to_dense(12)):
        values = plain.clone()
        descend(values, gradient, 0.1)
        torch.testing.assert_close(values, plain - 0.1 * rows.to_dense(12))
        values = plain.clone()
        descend(values, gradient, 0.1, among=among)
        torch.testing.assert_close(values, torch.where(marked, plain - 0.1 * rows.to_dense(12), plain))
    values = plain.clone()
    install_rows(values, among)
    assert torch.equal(values, torch.where(marked, among.to_dense(12), plain))


def test_rows_survive_the_wire():
    rows = rows_of(3, count=3)
    assert rows.tensors[0].dtype == torch.int32
    found = parse_rows({"number": 1, **rows.body_fields}, rows.tensors, PIECE, torch.float64)
    assert found is not None
    assert torch.equal(found.numbers, rows.numbers)
    assert torch.equal(found.values, rows.values)
    assert parse_rows({"number": 1}, (torch.zeros(12),), PIECE, torch.float64) is None


def numbers(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    ("width", "tensors"),
    [
        (3, ()),
        (3, (numbers(1),)),
        (3, (numbers(1), torch.zeros(3))),
        (3, (numbers(1), torch.zeros(1, 2))),
        (3, (numbers(1), torch.zeros(2, 3))),
        (3, (numbers(1, dtype=torch.int64), torch.zeros(1, 3))),
        (3, (numbers(1), torch.zeros(1, 3, dtype=torch.float64))),
        (3, (numbers(1)[None], torch.zeros(1, 3))),
        (2, (numbers(1), torch.zeros(1, 2))),
        ("3", (numbers(1), torch.zeros(1, 3))),
        (3, (numbers(-1), torch.zeros(1, 3))),
        (3, (numbers(4), torch.zeros(1, 3))),
        (3, (numbers(1, 1), torch.zeros(2, 3))),
        (3, (numbers(2, 1), torch.zeros(2, 3))),
    ],
)
def test_rows_that_do_not_fit_the_slice_are_refused(width, tensors):
    with pytest.raises(ValueError, match=r"^has "):
        parse_rows({"width": width}, tensors, PIECE, torch.float32)
    with pytest.raises(ValueError, match=r"^has "):  # nor has a slice of no table any
        parse_rows({"width": 3}, (numbers(1), torch.zeros(1, 3)), ParameterSlice(0, 0, 0, 12, 0), torch.float32)
