"""Islands as they are run: steps by name, numbers between them, and sizes that must be those of the trace."""

import pytest
import torch

from cutset.errors import BadInput
from cutset.partition.ir.arguments import bind_arguments
from cutset.partition.operators.island import IslandForm, IslandStep, encode_form, run_island, run_steps
from cutset.partition.operators.leaf_module import TensorSpec

aten = torch.ops.aten
X = torch.tensor([[1.0, -2.0], [3.0, 4.0], [-5.0, 6.0]])


def tensor(name: str) -> dict[str, str]:
    return {"tensor": name}


def positive_rows(size: int) -> IslandForm:
    """The sum of the rows that begin with a positive number, times how many they are."""
    index = {**bind_arguments(aten.index.Tensor, (), {}), "self": tensor("x"), "indices": [tensor("mask")]}
    total = {**bind_arguments(aten.sum.dim_IntList, (), {}), "self": tensor("rows"), "dim": [0]}
    steps = (
        IslandStep("aten.index.Tensor", index, ("rows",)),
        IslandStep("aten.sym_size.int", {"self": tensor("rows"), "dim": 0}, ("count",)),
        IslandStep("number.mul", {"0": tensor("count"), "1": 10}, ("tens",)),
        IslandStep("aten.sum.dim_IntList", total, ("total",)),
        IslandStep("aten.mul.Tensor", {"self": tensor("total"), "other": tensor("tens")}, ("scaled",)),
    )
    return IslandForm(steps, ("x", "mask"), ("scaled",), (TensorSpec((size,), (1,), "float32"),))


def test_steps_run_one_after_the_other_and_pass_numbers_on() -> None:
    (found,) = run_steps(positive_rows(2), [X, X[:, 0] > 0])
    assert torch.equal(found, X[:2].sum(0) * 20)


def test_it_may_be_empty() -> None:
    (found,) = run_steps(positive_rows(2), [X, X[:, 0] > 9])
    assert torch.equal(found, torch.zeros(2))


def test_a_size_that_is_not_that_of_the_trace_is_refused() -> None:
    with pytest.raises(BadInput, match=r"E327: an island of aten.index.Tensor, .* gives \[2\], and gave float32\[3\]"):
        run_island({"operands": [X, X[:, 0] > 0], "form": encode_form(positive_rows(3))}, None)
