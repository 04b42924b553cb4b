"""Tables that a model's code keeps outside of the model are traced, and no tensor without values stays in them."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cutting import DOUBLE, Subject, assert_same, run_cut, run_plain
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from zoo import Case, real

from cutset.models.task import Data
from cutset.partition.dataflow.cut import one_machine_cut
from cutset.partition.trace import global_caches
from cutset.partition.trace.global_caches import keep_global_caches

TABLES: dict[int, Tensor] = {}
ROWS: list[Tensor] = []
LAST: Tensor | None = None


class Shared:
    """A class that keeps tables for all of its objects."""

    tables: dict[int, Tensor] = {}  # noqa: RUF012


@functools.lru_cache
def compute_table(length: int) -> Tensor:
    return torch.arange(length, dtype=DOUBLE).cos()


@functools.lru_cache
def compute_slowly(length: int) -> int:
    """Stands for a file that is read, or an index that is built."""
    return length * length


def by_function(x: Tensor) -> Tensor:
    return compute_table(x.shape[1])


def by_dictionary(x: Tensor) -> Tensor:
    if x.shape[1] not in TABLES:
        TABLES[x.shape[1]] = torch.arange(x.shape[1], dtype=DOUBLE).cos()
    return TABLES[x.shape[1]]


def by_list(x: Tensor) -> Tensor:
    if not ROWS:
        ROWS.append(torch.arange(x.shape[1], dtype=DOUBLE).cos())
    return ROWS[0]


def by_variable(x: Tensor) -> Tensor:
    global LAST
    if LAST is None:
        LAST = torch.arange(x.shape[1], dtype=DOUBLE).cos()
    return LAST


def by_class(x: Tensor) -> Tensor:
    if x.shape[1] not in Shared.tables:
        Shared.tables[x.shape[1]] = torch.arange(x.shape[1], dtype=DOUBLE).cos()
    return Shared.tables[x.shape[1]]


class Net(nn.Module):
    def __init__(self, table: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.table = nn.Linear(6, 6), table

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.table(x)  # type: ignore[no-any-return]


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("table", [by_function, by_dictionary, by_list, by_variable, by_class])
def test_a_table_outside_of_the_model_is_traced(table: Callable[[Tensor], Tensor]) -> None:
    case = Case(lambda: Net(table), lambda: Data((real(4, 6),), (real(4, 6),)), F.mse_loss)
    of = Subject(case, DOUBLE)
    assert not isinstance(table(of.batch.inputs[0]), FakeTensor)
    assert_same(run_cut(of, one_machine_cut(of.graph)), run_plain(of), rtol=1e-12)


def test_what_was_there_before_stays() -> None:
    there = torch.zeros(3)
    TABLES[3] = there
    with keep_global_caches([Net(by_dictionary)]), FakeTensorMode():
        TABLES[9] = torch.zeros(9)
        ROWS[:] = [torch.zeros(9)]
    assert TABLES[3] is there
    assert 9 not in TABLES
    assert not any(isinstance(row, FakeTensor) for row in ROWS)
    TABLES.clear()


def test_what_a_program_had_computed_before_stays() -> None:
    compute_slowly(3)
    with keep_global_caches([Net(by_function)]), FakeTensorMode():
        compute_slowly(3)
        compute_table(7)
    assert compute_slowly.cache_info().currsize == 1
    assert compute_table.cache_info().currsize == 0


def test_another_thread_may_add_to_globals_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    space, added = globals(), list[str]()

    def copy_late(value: Any) -> Any:
        added.append(f"added_{len(added)}")  # as another thread would, while globals are looked at
        space[added[-1]] = {}
        return copy(value)

    copy = global_caches._copy
    monkeypatch.setattr(global_caches, "_copy", copy_late)
    with keep_global_caches([Net(by_dictionary)]), FakeTensorMode():
        TABLES[9] = torch.zeros(9)
    assert 9 not in TABLES
    assert {str(space.pop(name)) for name in added} == {"{}"}
