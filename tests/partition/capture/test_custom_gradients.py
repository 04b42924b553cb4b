"""Where gradients end, and which are those of an operator."""

from typing import Any

import torch
from torch import Tensor, nn

from cutset.partition.capture.custom_gradients import find_gradient_leaves, is_outside
from cutset.partition.capture.export import capture


def test_leaves_of_a_gradient() -> None:
    a, b, c = (torch.ones(2, requires_grad=True) for _ in range(3))
    assert find_gradient_leaves(torch.ones(2)) == []
    assert find_gradient_leaves(a)[0] is a
    found = find_gradient_leaves((a * b).detach() + a * c * a)
    assert {id(leaf) for leaf in found} == {id(a), id(c)}
    assert not any(is_outside(leaf, [c, a]) for leaf in found)
    assert any(is_outside(leaf, [a, b]) for leaf in found)


class Rounded(torch.autograd.Function):
    of_operator = True

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Rounding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.cutset_test_custom_gradients.rounded(self.linear(x))
        return y


def test_a_backward_within_an_operator_is_kept_with_it() -> None:
    x = torch.ones(4, 6)
    with torch.library._scoped_library("cutset_test_custom_gradients", "DEF") as library:
        library.define("rounded(Tensor x) -> Tensor")
        library.impl("rounded", Rounded.apply, "CompositeImplicitAutograd")
        ops = capture(Rounding(), nn.functional.mse_loss, [x], [x])[0].ops
    assert "cutset_test_custom_gradients.rounded.default" in {op.target for op in ops}
