"""What stands in for recurrent nets in a run without data."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cutset.partition.capture.export import capture
from cutset.partition.capture.tracing_error import Untraceable
from cutset.partition.trace.recurrent_stand_ins import RECURRENT_NETS
from cutset.partition.trace.stand_ins import StandIns


def list_nets() -> Iterator[nn.Module]:
    for kind, batch_first, bidirectional, layers in itertools.product(
        (nn.LSTM, nn.GRU, nn.RNN), (True, False), (True, False), (1, 2)
    ):
        yield kind(5, 7, batch_first=batch_first, bidirectional=bidirectional, num_layers=layers)
    yield nn.LSTM(5, 7, proj_size=3).double()  # torch warns of floats
    yield nn.RNN(5, 7, nonlinearity="relu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(4, 6, 5), (6, 5)])
@pytest.mark.parametrize("net", list(list_nets()), ids=str)
def test_results_have_the_form_of_torchs(net: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    net = net if net.weight_ih_l0.dtype == torch.float64 else net.to(dtype)
    x = torch.zeros(shape, dtype=net.weight_ih_l0.dtype)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, StandIns(RECURRENT_NETS):
        found = tree_leaves(net(mode.from_tensor(x)))
    expected = tree_leaves(net(x))
    assert [(t.shape, t.stride(), t.dtype, t.requires_grad) for t in found] == [
        (t.shape, t.stride(), t.dtype, t.requires_grad) for t in expected
    ]


class Layer(nn.Module):
    """Has a recurrent net that draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.GRU(4, 4, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.net(x)[0]
        return result


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.run
def test_like_layers_that_draw_are_traced_as_each_alone(training: bool) -> None:
    x, graphs = torch.zeros(2, 3, 4), []
    for reuse in (True, False):
        model = nn.Sequential(*(Layer() for _ in range(6)))
        graphs.append(capture(model, F.mse_loss if training else None, (x,), (x,), reuse=reuse)[0])
    assert graphs[0] == graphs[1]


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_time_steps_cost_nothing_where_nothing_is_traced(kind: type[nn.RNNBase]) -> None:
    counts = []
    for steps in (2, 200):
        net = kind(4, 4).double()
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, StandIns(RECURRENT_NETS), Counted() as counted:
            net(mode.from_tensor(torch.zeros(steps, 2, 4, dtype=torch.float64)))
        counts.append(counted.count)
    assert counts[0] == counts[1]


class Penalized(nn.Module):
    """Asks for a gradient through a recurrent net while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.net = nn.GRU(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        scaled = x * self.scale
        (gradient,) = torch.autograd.grad(self.net(scaled)[0].sum(), scaled, create_graph=True)
        return gradient


def test_a_gradient_through_a_net_within_the_step_is_refused_by_its_line() -> None:
    x = torch.zeros(2, 3, 4)
    with pytest.raises(Untraceable, match=r"(?s)E320.*torch.autograd.grad.*a gradient through a recurrent net"):
        capture(Penalized(), F.mse_loss, (x,), (x,))
