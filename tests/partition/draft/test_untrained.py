"""The parameters that are frozen, for they get no gradient, are those to which torch gives none."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cutset.partition.capture.export import capture

WIDTH = 4


class Net(nn.Module):
    """A layer that is trained, and a second one, which `join` puts to what comes of the first; one is unused."""

    def __init__(self, join: Callable[[Tensor, nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.unused = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.join = join

    def forward(self, x: Tensor) -> Tensor:
        return self.join(self.first(x), self.second, x)


def both(y: Tensor, second: nn.Module, x: Tensor) -> Tensor:
    """All are trained but the unused layer."""
    out: Tensor = second(y)
    return out


def teacher(y: Tensor, second: nn.Module, x: Tensor) -> Tensor:
    """What the second layer gives is a target."""
    return y - second(x).detach()


def teacher_without_gradients(y: Tensor, second: nn.Module, x: Tensor) -> Tensor:
    """The same in other words."""
    with torch.no_grad():
        target = second(x)
    return y - target


def choice(y: Tensor, second: nn.Module, x: Tensor) -> Tensor:
    """The second layer chooses a column, and a choice has no gradient."""
    return y * nn.functional.one_hot(second(x).argmax(-1), WIDTH)


def half_detached(y: Tensor, second: nn.Module, x: Tensor) -> Tensor:
    """One of two paths is cut off."""
    return second(y) - second(x).detach()


def straight_through(y: Tensor, second: nn.Module, x: Tensor) -> Tensor:
    """Rounded values with the gradient of those that are not."""
    out = second(y)
    return out + (out.round() - out).detach()


def mean_square(output: Tensor, target: Tensor) -> Tensor:
    """The loss."""
    return (output - target).square().mean()


@pytest.mark.parametrize("join", [both, teacher, teacher_without_gradients, choice, half_detached, straight_through])
def test_they_are_those_without_a_gradient_in_torch(join: Callable[[Tensor, nn.Module, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    net, x, target = Net(join), torch.randn(3, WIDTH), torch.randn(3, WIDTH)
    graph, _ = capture(net, mean_square, (x,), (target,), freeze=True)
    mean_square(net(x), target).backward()
    expected = [name for name, parameter in net.named_parameters() if parameter.grad is None]
    assert sorted(graph.frozen) == sorted(expected)
    assert {t.name for t in graph.parameters} == {name for name, _ in net.named_parameters()} - set(expected)


def test_no_gradient_flows_through_what_they_make() -> None:
    graph, _ = capture(Net(teacher), mean_square, (torch.zeros(3, WIDTH),), (torch.zeros(3, WIDTH),), freeze=True)
    (product,) = (op for op in graph.ops if "second.weight" in op.inputs)
    assert not graph.tensors[product.outputs[0]].gradient


def test_nothing_is_frozen_unless_that_is_asked_for() -> None:
    graph, _ = capture(Net(teacher), mean_square, (torch.zeros(3, WIDTH),), (torch.zeros(3, WIDTH),))
    assert graph.frozen == []
