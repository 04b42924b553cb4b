"""Labels that look right at some values, and are not: parts must show it."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from cutset.partition.discovery.dependence import Sample
from cutset.partition.discovery.operator_call import OperandSpec, OperatorCall
from cutset.partition.discovery.rule_data import FoundLabel
from cutset.partition.discovery.search import _search
from cutset.partition.discovery.verification import holds

NUMBERS = itertools.count()


@contextmanager
def operator(function: Callable[[Tensor], Tensor], *shape: int) -> Iterator[OperatorCall]:
    """A call of an operator that does what a function does."""
    with torch.library._scoped_library("cutset_test_verification", "DEF") as library:
        name = f"f{next(NUMBERS)}"  # torch keeps operators by their names
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, function, "CompositeImplicitAutograd")
        output = tuple(function(torch.ones(shape, dtype=torch.float64)).shape)
        specs = (OperandSpec("x", shape, "float64"),)
        yield OperatorCall(f"cutset_test_verification.{name}.default", '{"x": {"tensor": "x"}}', specs, output)


class ZeroGradient(torch.autograd.Function):
    """The identity, whose gradient is divided by its length."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients):  # type: ignore[no-untyped-def]
        return gradients[0] / len(gradients[0])


FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "divided by the largest": lambda x: x / x.detach().abs().max(),
    "above a limit, the mean is taken off": lambda x: x - x.mean() * (x.abs().max() > 50),
    "below zero, the first is added": lambda x: torch.where(x < 0, x + x[0], x),
    "ties share": lambda x: x / (x[:, None] == x[None, :]).sum(1),
    "position": lambda x: x * torch.arange(1, len(x) + 1),
    "parity": lambda x: x * (-1.0) ** torch.arange(len(x)),
    "number of rows": lambda x: x / len(x),
    "gradient alone": lambda x: ZeroGradient.apply(x),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_looks_right_at_some_values_is_refused(name: str) -> None:
    with operator(FAULTS[name], 6) as call:
        assert _search(call, call) is None


def test_what_is_right_is_kept() -> None:
    with operator(torch.sin, 6) as call:
        assert _search(call, call) is not None


def sample(call: OperatorCall) -> Sample:
    x, other = torch.randn(2, *call.operands[0].shape, dtype=torch.float64)
    return Sample({"x": x}, call.run({"x": x}), {"x": other})


def test_labels_that_hold_alone_need_not_hold_jointly() -> None:
    parts = [FoundLabel(0, (("x", 0),)), FoundLabel(1, (("x", 1),))]
    with operator(lambda x: x + (0.0 if 5 in x.shape else 1.0), 5, 5) as call:
        assert all(holds(call, [label], [sample(call)]) for label in parts)
        assert not holds(call, parts, [sample(call)])


def test_a_sum_of_parts_is_told_from_a_mean() -> None:
    label = FoundLabel(None, (("x", 0),))
    with operator(lambda x: x.sum(0), 6, 4) as call:
        assert holds(call, [label], [sample(call)])
    with operator(lambda x: x.mean(0), 6, 4) as call:
        assert not holds(call, [label], [sample(call)])
