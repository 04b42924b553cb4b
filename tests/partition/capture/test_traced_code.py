"""What the model's code does while it is traced, and a trace could not follow."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from layer_stacks import WIDTH, Layer, Stack
from torch import Tensor, nn

from cutset.errors import BadInput
from cutset.partition.capture.export import capture

X = torch.zeros(4, WIDTH)


def loss(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, target)


class Moved(Layer):
    """Casts a part of it to what it is, and moves another to where it is."""

    def forward(self, x: Tensor) -> Tensor:
        self.wide = self.wide.to(x.dtype)
        self.norm.to(x.device).float()
        return super().forward(x)


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.run
def test_modules_may_be_moved_to_where_they_are(reuse: bool) -> None:
    found, _ = capture(Stack(lambda i: Moved()), loss, (X,), (X,), reuse=reuse)
    expected, _ = capture(Stack(lambda i: Layer()), loss, (X,), (X,))
    assert [(op.name, op.target, op.arguments, op.nest) for op in found.ops] == [
        (op.name, op.target, op.arguments, op.nest) for op in expected.ops
    ]
    assert found.tensors == expected.tensors


class Tabled(nn.Module):
    """Casts a tensor of its own, which is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.ones(WIDTH, dtype=torch.float64)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        self.table = fn(self.table)
        return super()._apply(fn, recurse)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.to(torch.float32).table


def test_what_a_module_does_by_itself_is_traced() -> None:
    graph, _ = capture(Tabled(), loss, (X,), (X,))
    assert [op.target for op in graph.ops] == ["aten.to.dtype", "aten.mul.Tensor", "aten.mse_loss.default"]


class Zeroed(Layer):
    """Sets the parameters of a part to zero in place, by what casts and moves go through."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.BatchNorm1d(WIDTH, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        self.part._apply(lambda tensor: tensor.zero_())
        return super().forward(x) + self.part.running_mean


def test_what_writes_in_place_is_not_passed_over() -> None:
    graph, _ = capture(Zeroed(), loss, (X,), (X,))
    assert {name for op in graph.ops for name in op.writes} >= {"part.running_mean", "part.running_var"}


class Narrowed(Layer):
    """Casts a part of it to another dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.wide.to(torch.bfloat16).bias.sum()


def test_what_another_cast_does_is_refused_by_its_line() -> None:
    with pytest.raises(BadInput, match=r"self\.wide\.to\(torch\.bfloat16\)"):
        capture(Narrowed(), loss, (X,), (X,))
    assert nn.Module._apply.__name__ == "_apply"
