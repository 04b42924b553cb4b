"""Checkpoints, inference mode and their kin: gradients flow and stop in the captured model where they do in torch."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from cutting import DOUBLE, Subject, assert_same, finest_cut, run_cut, run_plain
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint, checkpoint_sequential
from zoo import Case, real

from cutset.errors import BadInput
from cutset.models.task import Data
from cutset.partition.capture.export import capture
from cutset.partition.dataflow.cut import one_machine_cut
from cutset.partition.operators.leaf_module import LEAF_MODULE


class Stopped(nn.Linear):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Inferred(nn.Linear):
    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Net(nn.Module):
    """Three layers and some of special kinds; the forward pass is the test's."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.stopped, self.inferred = Stopped(6, 6), Inferred(6, 6)
        self.chain = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        self.drop = nn.Dropout(0.5)


def reentrant(function: Callable[..., Tensor], *args: Tensor) -> Tensor:
    return checkpoint(function, *args, use_reentrant=True)  # type: ignore[no-any-return]


def by_default(net: Net, x: Tensor) -> Tensor:
    return net.c(checkpoint(net.b, net.a(x)))  # type: ignore[no-any-return]


def nested(net: Net, x: Tensor) -> Tensor:
    return net.c(reentrant(lambda h: reentrant(net.b, h.tanh()) + h, net.a(x)))  # type: ignore[no-any-return]


def with_dropout(net: Net, x: Tensor) -> Tensor:
    return net.c(reentrant(lambda h: net.drop(net.b(h)), net.drop(net.a(x))))  # type: ignore[no-any-return]


def of_data(net: Net, x: Tensor) -> Tensor:
    """No argument asks for a gradient, so torch computes none for the weights of b."""
    return net.c(reentrant(net.b, x))  # type: ignore[no-any-return]


def of_several(net: Net, x: Tensor) -> Tensor:
    first, second = checkpoint(lambda h, data: (net.b(h) * data, net.c(data)), net.a(x), x, use_reentrant=True)
    return first + second  # type: ignore[no-any-return]


def without_gradients(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        fixed = reentrant(net.b, net.a(x))
    return net.c(fixed) * net.a(x)  # type: ignore[no-any-return]


def in_chunks(net: Net, x: Tensor) -> Tensor:
    return checkpoint_sequential(net.chain, 2, net.a(x), use_reentrant=True)  # type: ignore[no-any-return]


def chunks_of_data(net: Net, x: Tensor) -> Tensor:
    return checkpoint_sequential(net.chain, 2, x, use_reentrant=True)  # type: ignore[no-any-return]


def switched(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    torch.set_grad_enabled(False)
    fixed = net.b(h)
    torch.set_grad_enabled(True)
    return net.c(h) * fixed  # type: ignore[no-any-return]


def in_inference_mode(net: Net, x: Tensor) -> Tensor:
    with torch.inference_mode():
        fixed = net.b(x)
        with torch.inference_mode(False):
            assert torch.is_grad_enabled()
    return net.c(x) * fixed.clone()  # type: ignore[no-any-return]


def decorated(net: Net, x: Tensor) -> Tensor:
    return net.c(net.stopped(net.a(x)) + net.inferred(x).clone() + net.b(x).detach() * net.b(x))  # type: ignore[no-any-return]


FORWARDS = [
    by_default, nested, with_dropout, of_data, of_several, without_gradients, in_chunks, chunks_of_data, switched,
    in_inference_mode, decorated,
]  # fmt: skip


@pytest.mark.first_cases(2)
@pytest.mark.filterwarnings("ignore:None of the inputs", "ignore:torch.utils.checkpoint. the use_reentrant")
@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
def test_the_gradients_are_those_of_plain_torch(forward: Callable[..., Tensor]) -> None:
    kind = type("Made", (Net,), {"forward": forward})
    of = Subject(Case(kind, lambda: Data((real(4, 6),), (real(4, 6),)), F.mse_loss), DOUBLE)
    plain = run_plain(of)
    assert plain.gradients["c.weight"].abs().sum() > 0 or forward in (in_chunks, chunks_of_data)
    for cut in (one_machine_cut(of.graph), finest_cut(of.graph, 2)):
        assert_same(run_cut(of, cut), plain, rtol=1e-12)


def test_torch_is_left_as_it_was() -> None:
    before = vars(torch.inference_mode).copy()
    with pytest.raises(BadInput):
        capture(nn.Linear(6, 6), F.mse_loss, [torch.zeros(4, 5)], [torch.zeros(4, 6)])
    assert "apply" not in vars(CheckpointFunction)
    assert vars(torch.inference_mode) == before


def test_a_backward_of_torch_that_a_trace_would_lose_is_refused_with_a_way_out() -> None:
    model, x = nn.Sequential(nn.Conv2d(1, 3, 1), nn.CrossMapLRN2d(2)), torch.zeros(2, 1, 3, 3)
    with pytest.raises(BadInput, match=r"E320: .* CrossMapLRN2d.backward at .*\n  fix: --leaf-modules '1'"):
        capture(model, lambda output: output.mean(), [x])
    graph, _ = capture(model, lambda output: output.mean(), [x], leaf_modules=["1"])
    assert any(op.target == LEAF_MODULE for op in graph.ops)
