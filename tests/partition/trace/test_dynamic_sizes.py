"""Sizes that depend on data: torch's own questions are answered, those of the model's code are not."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from cutset.partition.trace.dynamic_sizes import assume_generic_sizes
from cutset.partition.trace.stand_ins import SIZES_IN_TENSORS, StandIns


@pytest.fixture(name="rows")
def _rows() -> Iterator[Tensor]:
    """Fake rows [u0, 4], as many as data says."""
    env = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    with FakeTensorMode(shape_env=env), assume_generic_sizes(), StandIns(SIZES_IN_TENSORS):
        x = torch.empty(6, 4)
        yield x[x[:, 0] > 0]


def test_operators_ask_and_go_on(rows: Tensor) -> None:
    assert F.dropout(rows, 0.5).shape[1] == 4
    assert F.batch_norm(rows, torch.zeros(4), torch.ones(4), training=True).shape[1] == 4
    assert F.linear(rows, torch.empty(3, 4)).shape[1] == 3


def test_the_models_code_may_not_ask(rows: Tensor) -> None:
    with pytest.raises(GuardOnDataDependentSymNode):
        bool(rows.shape[0] == 0)
    with pytest.raises(GuardOnDataDependentSymNode):
        bool(rows.sum() > 0)


def test_a_size_in_a_tensor_makes_a_tensor_of_that_size(rows: Tensor) -> None:
    lengths = torch.empty(3, dtype=torch.int64)
    made = torch.zeros(lengths[0], 5)
    assert made.shape[1] == 5
    assert type(made.shape[0]) is torch.SymInt


def test_afterwards_torch_is_as_before() -> None:
    before = ShapeEnv.evaluate_expr
    with assume_generic_sizes():
        assert ShapeEnv.evaluate_expr is not before
    assert ShapeEnv.evaluate_expr is before
