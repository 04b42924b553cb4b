"""Operators are recorded in plain form: the same result, with nothing overwritten and views as slices."""

import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from cutting import Subject, assert_same, finest_cut, predict_cut, run_cut, run_plain
from marking import with_slow
from torch import Tensor, nn
from zoo import Case, real

from cutset.models.task import Data
from cutset.partition.dataflow.cut import one_machine_cut
from cutset.partition.ir.arguments import find_overload
from cutset.partition.ir.graph import OPAQUE

Forward = Callable[[nn.Module, Tensor], Tensor]


def chunks(self, x):
    a, b, c = self.linear(x).split([1, 2, 3], -1)
    d, e = x.chunk(2)
    return torch.cat([c, b * 2, a], -1) + torch.stack(x.unbind(0)[::-1]) + torch.cat([e, d])


def renamed(self, x):
    y = self.linear(x)
    y = y.swapaxes(0, 1).movedim(0, 1).moveaxis([0, 1], [1, 0]).mT.T.mT.type_as(x)
    y = y.reshape_as(x) + x[:, :1].expand_as(y) + y.ravel().view_as(x) + y.narrow(1, 0, 6)
    return torch.concat([y, y])[:4] + sum(torch.broadcast_tensors(y, x[0]))


def nested_views(self, x):
    y = self.linear(x).clone()
    y[:, 1:][:, :2] += 1
    y[0][2] = 7.0
    y.view(2, 2, 6).transpose(0, 1).permute(2, 0, 1)[3] *= 2.0
    return y * y[..., ::2].sum()


def stale_views(self, x):
    y = self.linear(x).clone()
    row, column, flat = y[1], y[:, 1], y.view(-1)
    y.mul_(2.0)
    row += column.sum()
    flat[5] = 0.0
    return torch.outer(column, row) + y + flat.view(4, 6)


def filled(self, x):
    y = self.linear(x)
    z = torch.zeros_like(y)
    z[:, 2:4] = y[:, :2]
    z[torch.tensor([0, 1]), torch.tensor([2, 3])] = 1.0
    z.scatter_(1, torch.tensor([[0, 1], [2, 3], [4, 5], [0, 0]]), y[:, :2].clone())
    z.index_add_(0, torch.tensor([0, 0, 1, 2]), y)
    z.masked_fill_(z > 2, 0.0).clamp_(-1.0, 1.0)
    other = y.new_full((4, 6), 2.0)
    other[:, 0:3].copy_(y[0, 3:])
    other[3].zero_()
    return z * other


def keeps_dtype(self, x):
    count = torch.zeros(4, 6, dtype=torch.int64)
    count += 1
    single = torch.zeros(4, 6, dtype=torch.float32)
    single += x
    single[:, 0] = x[:, 1]
    return self.linear(x) * count + single


def reshaped_in_place(self, x):
    y = self.linear(x).clone()
    y.unsqueeze_(0).squeeze_(0)
    y.t_()
    return y.t() + F.dropout(y * 1.0, 0.0, True, inplace=True).t()


def written_out(self, x):
    out = torch.empty_like(x)
    torch.mul(x.detach(), 2.0, out=out)
    return self.linear(x) + out


def painted(self, x):
    y = torch.empty_like(self.linear(x))
    y.normal_()
    y[0].uniform_()
    y[1].bernoulli_(0.5)
    return self.linear(x) * y


def input_overwritten(self, x):
    x = x.mul_(2.0).add_(1.0)
    return self.linear(x)


def overwritten_without_gradients(self, x):
    x = x.clone()
    with torch.no_grad():
        x[:, 0] = 1.0
        x.detach().mul_(2.0)
        scale = x.abs().mean()
        scale.clamp_(min=0.5)
    return self.linear(x) * scale


def empty_parts(self, x):
    y = self.linear(x)
    return torch.cat([y[:, :0], y, torch.zeros(4, 0, dtype=y.dtype)], 1) + y[:0].sum()


def shared_values(self, x):
    y = self.linear(x)
    return torch.cat([y, y], 1)[:, 3:9] * F.softmax(y, 0) + y[:, :1] * y @ y.t() @ y


@torch.no_grad()
def frozen(t):
    u = t * 2
    u[0] = 0.0
    return u.add_(1.0)


def decorated(self, x):
    y = self.linear(x)
    return y * frozen(y) + frozen(self.linear.weight)[:4]


FORWARDS: list[Forward] = [
    *(chunks, renamed, nested_views, stale_views, filled, keeps_dtype, reshaped_in_place, written_out, painted),
    *(input_overwritten, shared_values, decorated, overwritten_without_gradients, empty_parts),
]
ROUNDED = (nested_views, stale_views)  # torch adds up gradients of overwritten views in another order


@functools.cache
def subject_of(forward: Forward) -> Subject:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return forward(self, x.clone() if forward is input_overwritten else x)

    return Subject(Case(Net, lambda: Data((real(4, 6),), (real(4, 6),)), F.mse_loss), torch.float64)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("forward", with_slow(FORWARDS[::2], FORWARDS[1::2]), ids=lambda f: f.__name__)
def test_the_plain_form_computes_the_same(forward: Forward) -> None:
    of = subject_of(forward)
    plain = run_plain(of)
    assert_same(run_cut(of, one_machine_cut(of.graph)), plain, rtol=1e-13 if forward in ROUNDED else 0.0)
    assert_same(run_cut(of, finest_cut(of.graph, 3)), plain, rtol=1e-11)
    torch.testing.assert_close(predict_cut(of, finest_cut(of.graph, 2)), predict_cut(of, one_machine_cut(of.graph)))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("forward", with_slow(FORWARDS[1::2], FORWARDS[::2]), ids=lambda f: f.__name__)
def test_nothing_that_is_recorded_overwrites_a_value(forward: Forward) -> None:
    for op in subject_of(forward).graph.ops:
        arguments = find_overload(op.target)._schema.arguments
        assert op.writes or not any(a.alias_info is not None and a.alias_info.is_write for a in arguments)


@pytest.mark.parametrize("forward", [chunks, renamed], ids=lambda f: f.__name__)
def test_views_have_rows_whatever_they_are_called(forward: Forward) -> None:
    assert {op.target for op in subject_of(forward).graph.ops if op.sharding_rule == OPAQUE} <= {"aten.stack.default"}


def test_what_is_not_overwritten_is_not_copied() -> None:
    ops = subject_of(chunks).graph.ops
    assert not any("scatter" in op.target or "copy" in op.target for op in ops)


@pytest.mark.slow
def test_names_of_operators_and_tensors_are_unique() -> None:
    for forward in FORWARDS:
        graph = subject_of(forward).graph
        outputs = [name for op in graph.ops for name in op.outputs]
        assert len(set(outputs)) == len(outputs)
        assert len({op.name for op in graph.ops}) == len(graph.ops)
