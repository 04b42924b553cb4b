"""A flat gradient whose tables are zero but for touched rows: everything equals the same done densely."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cutset.models.task import Data
from cutset.runtime.worker.flat_gradient import PART_ELEMENTS, FlatGradient, SparseTable
from cutset.runtime.worker.uncut_worker import UncutWorker, find_sparse_tables

TABLES = [
    SparseTable(3, 15, 4),
    SparseTable(15, 21, 1),
    SparseTable(23, 29, 2),
]  # three before the first, two between, one after the last
SIZE = 30


def touched(seed: int) -> tuple[FlatGradient, Tensor]:
    """A gradient of which some rows were touched, and the same as a flat tensor."""
    generator = torch.Generator().manual_seed(seed)
    gradient = FlatGradient(torch.zeros(SIZE, dtype=torch.float64), TABLES)
    for run in gradient.runs:
        gradient.flat[run] = torch.randn(gradient.flat[run].shape, generator=generator, dtype=torch.float64)
    for number, table in enumerate(TABLES):
        rows = torch.randint(0, table.rows, (4,), generator=generator)
        values = torch.randn((4, table.width), generator=generator, dtype=torch.float64)
        table.view(gradient.flat).index_add_(0, rows, values)
        gradient.mark_rows(number, rows)
    return gradient, gradient.flat.clone()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_every_operation_equals_the_dense_one(first: int, second: int) -> None:
    (a, dense), (b, other) = touched(first), touched(second)
    values = torch.arange(SIZE, dtype=torch.float64)
    a.add(b)
    a.scale(0.5)
    dense = 0.5 * (dense + other)
    assert torch.equal(a.flat, dense)
    assert a.norm() == pytest.approx(float(dense.norm()), rel=1e-12)
    a.descend(values, 0.1)
    torch.testing.assert_close(values, torch.arange(SIZE, dtype=torch.float64) - 0.1 * dense, rtol=1e-14, atol=1e-14)
    assert not a.zero().flat.any()
    assert torch.equal(b.flat, other)
    assert all(not a.rows(number).numel() for number in range(len(TABLES)))


def test_what_is_not_a_row_of_a_touched_table_is_never_read_or_written() -> None:
    gradient, _ = touched(0)
    marks = torch.ones(SIZE, dtype=torch.bool)
    for run in gradient.runs:
        marks[run] = False
    for number, table in enumerate(TABLES):
        table.view(marks)[gradient.rows(number)] = False
    assert marks.any()
    gradient.flat[marks] = float("nan")
    values = torch.zeros(SIZE, dtype=torch.float64)
    norm = gradient.norm()
    gradient.scale(2.0)
    gradient.descend(values, 1.0)
    gradient.zeros_like().add(gradient)
    gradient.zero()
    assert norm == norm
    assert not values.isnan().any()
    assert torch.equal(gradient.flat.isnan(), marks)


def test_a_part_is_the_touched_rows_between_two_rows() -> None:
    gradient = FlatGradient(torch.arange(12.0), [SparseTable(0, 12, 3)])
    gradient.mark_rows(0, torch.tensor([3, 1, 3]))
    part = gradient.rows_between(3, 12)
    assert part is not None
    assert part[0].tolist() == [0, 2]
    assert part[1].tolist() == [[3, 4, 5], [9, 10, 11]]
    assert FlatGradient(torch.arange(12.0), [SparseTable(0, 6, 3)]).rows_between(6, 12) is None


def test_rows_that_nobody_clears_take_no_more_room_than_the_table() -> None:
    gradient = FlatGradient(torch.zeros(100), [SparseTable(0, 100, 1)])
    for _ in range(1000):
        gradient.mark_rows(0, torch.arange(10))
        assert sum(rows.numel() for rows in gradient._marked[0]) <= 201
    assert gradient.rows(0).tolist() == list(range(10))


class Words(nn.Module):
    """sparse: a table. both: read densely too. dense: an embedding that is none."""

    def __init__(self, rows: int = 50) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(4, 4)
        self.sparse, self.both = nn.Embedding(rows, 4, sparse=True), nn.Embedding(rows, 4, sparse=True)
        self.dense = nn.Embedding(rows, 4)

    def forward(self, words: Tensor) -> Tensor:
        rows = self.sparse(words) + self.both(words) + self.dense(words)
        out: Tensor = self.first(rows.mean(1)) + self.both.weight.mean()
        return out


def square(output: Tensor) -> Tensor:
    return output.square().mean()


def test_tables_are_the_parameters_that_only_sparse_gradients_reach() -> None:
    model = Words()
    parameters = dict(model.named_parameters())
    assert find_sparse_tables(square(model(torch.zeros(2, 3, dtype=torch.int64))), parameters) == [
        SparseTable(20, 220, 4)
    ]
    assert find_sparse_tables(torch.zeros((), requires_grad=True) * 2, parameters) == []


def test_a_worker_notes_the_rows_that_a_step_touches() -> None:
    model = Words()
    worker = UncutWorker(model, square, tables=[SparseTable(20, 220, 4)])
    words = torch.tensor([[1, 4, 4], [7, 1, 9]])
    worker.step(Data((words,), ()), 0)
    assert worker.gradient.rows(0).tolist() == [1, 4, 7, 9]
    assert model.sparse.weight.grad is not None
    assert not model.sparse.weight.grad.is_sparse
    plain = Words()
    square(plain(words)).backward()  # type: ignore[no-untyped-call]
    assert plain.sparse.weight.grad is not None
    assert torch.equal(model.sparse.weight.grad, plain.sparse.weight.grad.to_dense())
    worker.step(Data((torch.tensor([[0, 1, 2]]),), ()), 1)
    assert worker.gradient.rows(0).tolist() == [0, 1, 2, 4, 7, 9]
    assert not worker.gradient.zero().flat.any()


def test_where_a_gradient_comes_dense_after_all_every_row_counts_as_touched() -> None:
    model = Words()
    worker = UncutWorker(model, square, tables=[SparseTable(20, 220, 4)])
    worker.loss = lambda output: square(output) + model.sparse.weight.square().sum()
    worker.step(Data((torch.zeros(1, 1, dtype=torch.int64),), ()), 0)
    assert worker.gradient.rows(0).tolist() == list(range(50))


def test_clipping_scales_what_was_touched() -> None:
    worker = UncutWorker(Words(), square, tables=[SparseTable(20, 220, 4)])
    worker.step(Data((torch.tensor([[1, 4]]),), ()), 0)
    before, norm = worker.gradients.clone(), float(worker.gradients.norm())
    assert worker.clip(norm / 2) == pytest.approx(norm)
    torch.testing.assert_close(worker.gradients, before / 2, rtol=1e-4, atol=0)


@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize("size", [SIZE, 3 * PART_ELEMENTS + 5])
def test_what_is_spent_moves_the_values_is_accrued_and_is_gone(rate: float, size: int) -> None:
    generator = torch.Generator().manual_seed(3)
    tables = TABLES if size == SIZE else []
    gradient = touched(1)[0] if tables else FlatGradient(torch.randn(size, generator=generator))
    dense, accrued, values = gradient.flat.clone(), gradient.zeros_like(), torch.randn(size, generator=generator)
    values = values.to(dense.dtype)
    expected = values.clone().sub_(dense, alpha=rate)
    gradient.descend_and_accumulate(values, rate, accrued)
    torch.testing.assert_close(values, expected, rtol=1e-15, atol=1e-15)
    assert torch.equal(accrued.flat, dense)
    assert not gradient.flat.any()
    assert [rows.tolist() for rows in map(accrued.rows, range(len(tables)))] == [
        touched(1)[0].rows(number).tolist() for number in range(len(tables))
    ]


def test_memory_that_was_given_away_is_never_written_again() -> None:
    first, second = torch.randn(PART_ELEMENTS + 3), torch.randn(PART_ELEMENTS + 3)
    values, accrued = torch.zeros(PART_ELEMENTS + 3), FlatGradient(torch.zeros(PART_ELEMENTS + 3))
    FlatGradient(first.clone()).descend_and_accumulate(values, 0.0, accrued)
    given = accrued.flat
    accrued.replace_memory()
    assert accrued.is_undefined
    for turn in (1, 2):
        FlatGradient(second.clone()).descend_and_accumulate(values, 0.0, accrued)
        assert not accrued.is_undefined
        assert torch.equal(accrued.flat, turn * second)
    assert torch.equal(given, first)


def test_of_tables_only_rows_are_given_away() -> None:
    with pytest.raises(ValueError, match="never given away"):
        touched(1)[0].replace_memory()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_parts_are_put_back_as_they_were(first: int, second: int) -> None:
    """Dense ones, and rows of a table, though other rows were touched since."""
    (gradient, before), (other, _) = touched(first), touched(second)
    parts = [(0, 3), (7, 15), (21, 23)]
    put_back = [gradient.save_between(*part) for part in parts]
    gradient.add(other)
    expected = gradient.flat.clone()
    for start, stop in parts:
        expected[start:stop] = before[start:stop]
    for put in put_back:
        put()
    assert torch.equal(gradient.flat, expected)
    assert not gradient.zero().flat.any()


class Mixed(nn.Module):
    """Large and small parameters, one that no gradient reaches, one whose gradient is transposed, and a table."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.words, self.both = nn.Embedding(50, 200, sparse=True), nn.Embedding(50, 200, sparse=True)
        self.first, self.second = nn.Linear(200, 100), nn.Linear(100, 90)
        self.unused = nn.Parameter(torch.randn(9000))
        self.turned = nn.Parameter(torch.randn(90, 100))

    def forward(self, words: Tensor) -> Tensor:
        hidden = torch.tanh(self.second(self.first(self.words(words).mean(1) + self.both(words).mean(1))))
        out: Tensor = hidden @ self.turned
        return out


def make_mixed() -> tuple[UncutWorker, Data]:
    worker = UncutWorker(Mixed(), square, tables=[SparseTable(18000, 28000, 200)])
    generator = torch.Generator().manual_seed(5)
    return worker, Data((torch.randint(0, 50, (8, 3), generator=generator),), ())


def test_gradients_that_lie_apart_are_those_that_do_not() -> None:
    """In the flat buffer, in their parts, and where a second step or a scaling follows."""
    together, batch = make_mixed()
    apart, _ = make_mixed()
    for _ in range(3):
        together.gradient.zero()
        apart.gradient.zero(apart=True)
        for worker in (together, apart):
            worker.step(batch, 0)
        own, there = together.gradient.flat, dict[int, Tensor]()
        for span, part in apart.gradient.dense_parts():
            assert torch.equal(part, own[span])
            there[span.start] = part
        large = {name for name, p in apart.parameters.items() if any(p is one for one, _ in apart.gradient._large)}
        assert large == {"both.weight", "first.weight", "second.weight", "unused", "turned"}
        assert sum(part.numel() for part in there.values()) == own.numel() - 10000
        assert torch.equal(apart.gradient.marked_values(0), together.gradient.marked_values(0))
    for worker in (together, apart):
        worker.step(batch, 1)
        worker.gradient.scale(0.5)
        worker.step(batch, 2)
    assert torch.equal(apart.gradient.flat, together.gradient.flat)
    assert torch.equal(apart.gradients, together.gradients)
    assert not apart.gradient.zero(apart=True).flat.any()


def test_a_gradient_that_lies_apart_needs_no_flat_memory() -> None:
    worker, batch = make_mixed()
    worker.gradient.zero(apart=True)
    (span,) = (span for parameter, span in worker.gradient._large if parameter is worker.parameters["first.weight"])
    worker.gradient._flat[span] = float("nan")
    worker.step(batch, 0)
    assert all(part.isfinite().all() for _, part in worker.gradient.dense_parts())
    assert worker.gradient._flat[span].isnan().all()
    assert worker.gradient.flat.isfinite().all()


def test_parts_of_gradients_that_lie_apart_are_gathered_in_memory_of_the_caller() -> None:
    together, batch = make_mixed()
    apart, _ = make_mixed()
    together.step(batch, 0)
    apart.gradient.zero(apart=True)
    apart.step(batch, 0)
    (table,) = together.gradient.tables
    flat, made = together.gradient.flat, list[Tensor]()

    def make(size: int, dtype: torch.dtype) -> Tensor:
        made.append(torch.full((size,), float("nan"), dtype=dtype))
        return made[-1]

    spans = [(run.start, run.stop) for run in together.gradient.runs]
    spans += [(a + (b - a) // 3, b - (b - a) // 5) for a, b in spans]
    assert all(b <= table.start or a >= table.stop for a, b in spans)
    for start, stop in spans:
        assert together.gradient.gather(start, stop, make) is None
        found = apart.gradient.gather(start, stop, make)
        assert found is made[-1]
        assert torch.equal(found, flat[start:stop])
    assert apart.gradient._lies_apart
    values = apart.values.clone()
    together.gradient.descend(together.values, 0.1)
    apart.gradient.descend(values, 0.1)
    assert torch.equal(values, together.values)
    assert apart.gradient._lies_apart


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_a_step_of_gradients_that_lie_apart_is_that_of_others(rate: float) -> None:
    found = []
    for apart in (False, True):
        worker, batch = make_mixed()
        accrued = worker.gradient.zero(apart=apart).zeros_like()
        for step in range(3):
            worker.step(batch, step)
            worker.gradient.descend_and_accumulate(worker.values, rate, accrued)
            assert worker.gradient._lies_apart == apart
        found.append((worker.values.clone(), accrued.flat.clone(), worker.gradient.flat.clone()))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert not found[1][2].any()
    assert found[1][1].any()
