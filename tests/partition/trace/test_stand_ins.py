"""`tensor.data` in a forward pass: reading it detaches, writing it copies, and parameters may not be overwritten."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from cutting import DOUBLE, Subject, assert_same, run_cut, run_plain
from torch import Tensor, nn
from zoo import Case, real

from cutset.errors import BadInput
from cutset.models.task import Data
from cutset.partition.dataflow.cut import one_machine_cut


class Net(nn.Module):
    """Two layers and running statistics; the forward pass is the test's."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("mean", torch.zeros(6))


def subject(forward: Callable[..., Tensor]) -> Subject:
    kind = type("Made", (Net,), {"forward": forward})
    return Subject(Case(kind, lambda: Data((real(4, 6),), (real(4, 6),)), F.mse_loss), DOUBLE)


def reads_its_activations(net: Net, x: Tensor) -> Tensor:
    y = net.a(x)
    return net.b(y + (y.round() - y).data)  # type: ignore[no-any-return]


def reads_a_weight(net: Net, x: Tensor) -> Tensor:
    return F.linear(net.a(x), net.b.weight / net.b.weight.data.norm())


def updates_a_buffer(net: Net, x: Tensor) -> Tensor:
    net.mean.data.mul_(0.9).add_(0.1 * x.data.mean(0))
    return net.b(net.a(x) - net.mean)  # type: ignore[no-any-return]


def assigns_a_buffers_data(net: Net, x: Tensor) -> Tensor:
    net.mean.data = 0.9 * net.mean + 0.1 * x.mean(0)
    return net.b(net.a(x) - net.mean)  # type: ignore[no-any-return]


def writes_under_no_grad(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        net.mean[:3].copy_(net.a(x).mean(0)[:3])
    return net.b(net.a(x) - net.mean)  # type: ignore[no-any-return]


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    "forward",
    [reads_its_activations, reads_a_weight, updates_a_buffer, assigns_a_buffers_data, writes_under_no_grad],
    ids=lambda forward: forward.__name__,
)
def test_loss_gradients_and_buffers_are_those_of_plain_torch(forward: Callable[..., Tensor]) -> None:
    of = subject(forward)
    assert_same(run_cut(of, one_machine_cut(of.graph)), run_plain(of), rtol=1e-12)


def clamps_a_weight(net: Net, x: Tensor) -> Tensor:
    net.b.weight.data.clamp_(-0.1, 0.1)
    return net.b(net.a(x))  # type: ignore[no-any-return]


def assigns_a_weights_data(net: Net, x: Tensor) -> Tensor:
    net.b.weight.data = net.b.weight.data * 0.9
    return net.b(net.a(x))  # type: ignore[no-any-return]


def doubles_without_a_gradient(net: Net, x: Tensor) -> Tensor:
    y = net.a(x)
    y.data = 2 * y.data
    return net.b(y)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (clamps_a_weight, "b.weight is overwritten"),
        (assigns_a_weights_data, "b.weight is overwritten"),
        (doubles_without_a_gradient, "a tensor with a gradient is overwritten by way of .data"),
    ],
)
def test_what_only_plain_torch_can_overwrite_is_refused(forward: Callable[..., Tensor], said: str) -> None:
    with pytest.raises(BadInput, match=f"E320: .*{said}"):
        subject(forward)
