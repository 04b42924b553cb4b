"""What travels of a table: rows, their mean, their descent, which changed last, and what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutset.ps.server.changes import ENTRIES_MOST, Changes
from cutset.ps.optimizers.standard import SGD, Adagrad
from cutset.ps.slices.slicing import Slice
from cutset.ps.optimizers.sparse_update import apply_lazily
from cutset.ps.slices.sparse_rows import Rows, descend, install, mean, received_rows
from cutset.ps.optimizers.optimizer import Update
from cutset.runtime.worker.flat_gradient import Gradient, Table

PIECE = Slice(0, 0, 0, 12, 0, 3)
SEEDS = st.integers(0, 10_000)


def rows_of(seed, count=None):
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(0, 5, (), generator=generator)) if count is None else count
    numbers = torch.randperm(4, generator=generator)[:count].sort().values
    return Rows(numbers, torch.randn((count, 3), generator=generator, dtype=torch.float64))


@settings(max_examples=30, deadline=None)
@given(st.lists(SEEDS, min_size=1, max_size=4), st.booleans())
def test_the_mean_is_that_of_dense_gradients(seeds, one_dense):
    gradients = [rows_of(seed) for seed in seeds]
    dense = [rows.dense(12) for rows in gradients]
    given_ = [dense[0], *gradients[1:]] if one_dense else gradients
    found = mean(given_, 12)
    assert isinstance(found, Rows) != one_dense
    found = found.dense(12) if isinstance(found, Rows) else found
    torch.testing.assert_close(found, torch.stack(dense).mean(0), rtol=1e-14, atol=1e-15)


@settings(max_examples=30, deadline=None)
@given(SEEDS, SEEDS)
def test_a_descent_is_dense_or_among_some_rows(seed, other):
    rows, among = rows_of(seed), rows_of(other)
    plain, marked = torch.arange(12.0, dtype=torch.float64), torch.zeros(12, dtype=torch.bool)
    marked.view(4, 3)[among.numbers] = True
    for gradient in (rows, rows.dense(12)):
        values = plain.clone()
        descend(values, gradient, 0.1)
        torch.testing.assert_close(values, plain - 0.1 * rows.dense(12))
        values = plain.clone()
        descend(values, gradient, 0.1, among=among)
        torch.testing.assert_close(values, torch.where(marked, plain - 0.1 * rows.dense(12), plain))
    values = plain.clone()
    install(values, among)
    assert torch.equal(values, torch.where(marked, among.dense(12), plain))


def test_what_travels_comes_back():
    rows = rows_of(3, count=3)
    assert rows.tensors[0].dtype == torch.int32
    found = received_rows({"number": 1, **rows.fields}, rows.tensors, PIECE, torch.float64)
    assert found is not None
    assert torch.equal(found.numbers, rows.numbers)
    assert torch.equal(found.values, rows.values)
    assert received_rows({"number": 1}, (torch.zeros(12),), PIECE, torch.float64) is None


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
def test_rows_that_are_not_the_slices_are_refused(width, tensors):
    with pytest.raises(ValueError, match=r"^has "):
        received_rows({"width": width}, tensors, PIECE, torch.float32)
    with pytest.raises(ValueError, match=r"^has "):  # nor has a slice of no table any
        received_rows({"width": 3}, (numbers(1), torch.zeros(1, 3)), Slice(0, 0, 0, 12, 0), torch.float32)


def test_changes_are_those_since_a_version():
    changes = Changes(10)
    assert changes.since(0, 1) is None
    assert changes.since(1, 1).tolist() == []
    for version in range(1, 5):
        changes.add(version, torch.tensor([version, version + 1]))
    assert changes.since(0, 4).tolist() == [1, 2, 3, 4, 5]
    assert changes.since(1, 4).tolist() == [2, 3, 4, 5]
    assert changes.since(3, 4).tolist() == [4, 5]
    assert changes.since(4, 4).tolist() == []
    assert changes.since(3, 5) is None  # something else has changed the slice
    changes.add(5, None)
    assert changes.since(4, 5) is None
    changes.add(6, torch.tensor([7]))
    assert changes.since(5, 6).tolist() == [7]
    changes.add(9, torch.tensor([8]))
    assert changes.since(6, 9) is None


def test_changes_that_touch_nothing_are_nothing():
    changes = Changes(10)
    for version in range(1, 4):
        changes.add(version, torch.zeros(0, dtype=torch.int64))
    assert changes.since(1, 3).tolist() == []


def test_changes_take_no_more_room_than_the_slice():
    changes = Changes(10)
    for version in range(1, 100):
        changes.add(version, torch.arange(4))
        assert changes._count <= 10
    assert changes.since(97, 99).tolist() == [0, 1, 2, 3]
    assert changes.since(90, 99) is None
    for version in range(100, 100 + 2 * ENTRIES_MOST):
        changes.add(version, torch.zeros(0, dtype=torch.int64))
    assert len(changes._log) == ENTRIES_MOST


@pytest.mark.parametrize("rule", [SGD(0.1), Adagrad(0.1)])
def test_a_rule_is_applied_to_what_was_touched(rule):
    gradient = Gradient(torch.zeros(20, dtype=torch.float64), [Table(2, 14, 3)])
    values = torch.arange(20.0, dtype=torch.float64)
    expected, state = values.clone(), rule.state(values)
    memory = rule.state(expected)
    for step in range(1, 4):
        generator = torch.Generator().manual_seed(step)
        gradient.zero()
        gradient.flat[:2] = gradient.flat[14:18] = step
        touched = torch.tensor([step - 1, 3])
        gradient.tables[0].of(gradient.flat)[touched] = torch.randn(2, 3, generator=generator, dtype=torch.float64)
        gradient.touch(0, touched)
        apply_lazily(rule, values, gradient, state, Update(step))
        rule.apply(expected, gradient.flat.clone(), memory, Update(step))  # a zero gradient changes nothing here
    assert torch.equal(values, expected)
    assert all(torch.equal(state[name], memory[name]) for name in memory)


def test_what_was_not_touched_does_not_even_decay():
    rule = SGD(0.1, weight_decay=0.5)
    gradient = Gradient(torch.zeros(8), [Table(2, 8, 2)])
    gradient.touch(0, torch.tensor([1]))
    values, state = torch.ones(8), {}
    apply_lazily(rule, values, gradient, state, Update(1))
    assert values.tolist() == pytest.approx([0.95, 0.95, 1, 1, 0.95, 0.95, 1, 1])
