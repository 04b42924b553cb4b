"""An optimizer is applied to touched rows of sparse tables only."""

import pytest
import torch

from cutset.ps.optimizers.optimizer import Update
from cutset.ps.optimizers.sparse_update import apply_lazily
from cutset.ps.optimizers.standard import SGD, Adagrad
from cutset.runtime.worker.flat_gradient import FlatGradient, SparseTable


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adagrad(0.1)])
def test_an_optimizer_is_applied_to_touched_rows(optimizer):
    gradient = FlatGradient(torch.zeros(20, dtype=torch.float64), [SparseTable(2, 14, 3)])
    values = torch.arange(20.0, dtype=torch.float64)
    expected, state = values.clone(), optimizer.init_state(values)
    memory = optimizer.init_state(expected)
    for step in range(1, 4):
        generator = torch.Generator().manual_seed(step)
        gradient.zero()
        gradient.flat[:2] = gradient.flat[14:18] = step
        touched = torch.tensor([step - 1, 3])
        gradient.tables[0].view(gradient.flat)[touched] = torch.randn(2, 3, generator=generator, dtype=torch.float64)
        gradient.mark_rows(0, touched)
        apply_lazily(optimizer, values, gradient, state, Update(step))
        optimizer.apply(expected, gradient.flat.clone(), memory, Update(step))  # a zero gradient changes nothing here
    assert torch.equal(values, expected)
    assert all(torch.equal(state[name], memory[name]) for name in memory)


def test_untouched_rows_do_not_decay():
    optimizer = SGD(0.1, weight_decay=0.5)
    gradient = FlatGradient(torch.zeros(8), [SparseTable(2, 8, 2)])
    gradient.mark_rows(0, torch.tensor([1]))
    values, state = torch.ones(8), {}
    apply_lazily(optimizer, values, gradient, state, Update(1))
    assert values.tolist() == pytest.approx([0.95, 0.95, 1, 1, 0.95, 0.95, 1, 1])
