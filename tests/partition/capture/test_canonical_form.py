"""The plain form of exported operators: one name for one meaning, and nothing read for its shape only."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cutset.partition.capture.export import capture
from cutset.partition.ir.graph import Op


class Calls(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def recorded(function: Callable[[Tensor], Tensor], *shape: int) -> list[Op]:
    """The operators of a call, without the one that collects the output."""
    return list(capture(Calls(function), None, (torch.zeros(shape),))[0].ops[:-1])


@pytest.mark.first_cases(3)
@pytest.mark.parametrize(
    ("function", "number", "dtype"),
    [
        (torch.zeros_like, 0, "float32"),
        (lambda x: torch.ones_like(x, dtype=torch.int64), 1, "int64"),
        (lambda x: torch.full_like(x, 2.5), 2.5, "float32"),
        (lambda x: x.new_zeros(4, 6), 0, "float32"),
        (lambda x: x.new_ones((4, 6), dtype=torch.bool), 1, "bool"),
        (lambda x: x.new_full((4, 6), 3.0), 3.0, "float32"),
    ],
    ids=["zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"],
)
def test_what_is_filled_reads_nothing(function: Callable[[Tensor], Tensor], number: float, dtype: str) -> None:
    (op,) = recorded(function, 4, 6)
    assert (op.target, op.inputs, op.arguments["fill_value"]) == ("aten.full.default", (), number)
    assert op.arguments["dtype"] == {"dtype": dtype}
    assert op.is_cuttable


@pytest.mark.first_cases(3)
@pytest.mark.parametrize(
    ("function", "target"),
    [
        (lambda x: torch.max(x, x * 2), "aten.maximum.default"),
        (lambda x: torch.min(x, other=x * 2), "aten.minimum.default"),
        (lambda x: torch.hstack([x, x]), "aten.cat.default"),
        (lambda x: torch.vstack([x, x]), "aten.cat.default"),
        (lambda x: x.hsplit(2)[1], "aten.slice.Tensor"),
        (lambda x: x.vsplit(2)[1], "aten.slice.Tensor"),
        (lambda x: torch.atleast_3d(x), "aten.reshape.default"),
        (lambda x: x.max(-1)[1], "aten.max.dim"),
    ],
    ids=["max", "min", "hstack", "vstack", "hsplit", "vsplit", "atleast_3d", "max of a dimension"],
)
def test_one_name_for_one_meaning(function: Callable[[Tensor], Tensor], target: str) -> None:
    assert recorded(function, 4, 6)[-1].target == target


def test_stacking_that_needs_another_dimension_stays_what_it_is() -> None:
    assert recorded(lambda x: torch.dstack([x, x]), 4, 6)[-1].target == "aten.dstack.default"


def test_tensors_without_an_element_are_not_put_together() -> None:
    (op,) = (op for op in recorded(lambda x: torch.cat([x[:, :0], x * 2, x[:, 6:]], 1), 4, 6) if "cat" in op.target)
    assert len(op.inputs) == 1
    assert op.is_cuttable


def test_an_empty_tensor_that_widens_the_others_stays() -> None:
    empty = torch.zeros(0, 6, dtype=torch.float64)
    (op,) = (op for op in recorded(lambda x: torch.cat([x, empty]), 4, 6) if "cat" in op.target)
    assert len(op.inputs) == 2


def test_each_result_that_is_used_is_an_operator() -> None:
    ops = recorded(lambda x: (lambda values, indices: values * indices)(*x.topk(2)), 4, 6)
    topk = [op for op in ops if op.target == "aten.topk.default"]
    assert [op.arguments["@output"] for op in topk] == [0, 1]
    assert all(op.is_cuttable for op in topk)
    assert [op.arguments["@output"] for op in recorded(lambda x: x.topk(2)[1], 4, 6)] == [1]
