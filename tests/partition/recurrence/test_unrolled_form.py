"""The unrolled form computes what torch's modules do: outputs, last states and gradients, for every option."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cutset.partition.recurrence.unrolled_form import GATES, RecurrentCall, unroll, unroll_cell

STEPS, BATCH, FEATURES, HIDDEN = 9, 3, 4, 5
KINDS = ["lstm", "gru", "rnn_tanh", "rnn_relu"]
SWITCHES = list(itertools.product([False, True], repeat=3))  # bidirectional, batch_first, bias


def module(kind: str, **options: Any) -> nn.RNNBase:
    if kind.startswith("rnn"):
        return nn.RNN(FEATURES, HIDDEN, nonlinearity=kind.removeprefix("rnn_"), **options)
    return (nn.LSTM if kind == "lstm" else nn.GRU)(FEATURES, HIDDEN, **options)


def net_of(kind: str, net: nn.RNNBase) -> RecurrentCall:
    directions = 1 + net.bidirectional
    return RecurrentCall(
        kind,
        steps=STEPS,
        batch=BATCH,
        hidden=HIDDEN,
        features=net.proj_size or HIDDEN,
        layers=net.num_layers,
        directions=directions,
        biases=net.bias,
        weights=len(net._flat_weights) // (net.num_layers * directions),
        dropout=net.dropout if net.training else 0.0,
        batch_first=net.batch_first,
    )


def assert_equal(kind: str, net: nn.RNNBase) -> None:
    """Compare output, last states, and the gradients of all that goes in."""
    net = net.double()
    count = net.num_layers * (1 + net.bidirectional)
    x = torch.randn(*((BATCH, STEPS) if net.batch_first else (STEPS, BATCH)), FEATURES).double().requires_grad_()
    sizes = [net.proj_size or HIDDEN, HIDDEN][: 2 if kind == "lstm" else 1]
    states = [torch.randn(count, BATCH, size).double().requires_grad_() for size in sizes]
    torch.manual_seed(5)
    output, last = net(x, tuple(states) if kind == "lstm" else states[0])
    expected = [output, *(last if kind == "lstm" else [last])]
    torch.manual_seed(5)
    actual = unroll(net_of(kind, net), x, states, net._flat_weights)
    wanted = [x, *states, *net.parameters()]
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
    pairs = zip(_gradients(actual, wanted), _gradients(expected, wanted), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


def _gradients(results: Any, wanted: list[Tensor]) -> tuple[Tensor, ...]:
    total = sum(
        (result * torch.linspace(0.5, 1.5, result.numel()).double().view_as(result)).sum() for result in results
    )
    return torch.autograd.grad(total, wanted)


@pytest.mark.parametrize(("bidirectional", "batch_first", "bias"), SWITCHES)
@pytest.mark.parametrize("kind", KINDS)
def test_computes_what_torch_does(kind: str, bidirectional: bool, batch_first: bool, bias: bool) -> None:
    torch.manual_seed(0)
    for layers in (1, 3):
        options = {"num_layers": layers, "bidirectional": bidirectional, "batch_first": batch_first, "bias": bias}
        assert_equal(kind, module(kind, **options))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_drops_what_torch_drops(kind: str, bidirectional: bool) -> None:
    torch.manual_seed(0)
    net = module(kind, num_layers=3, dropout=0.4, bidirectional=bidirectional)
    assert_equal(kind, net)
    assert_equal(kind, net.eval())


@pytest.mark.parametrize(("bidirectional", "bias"), list(itertools.product([False, True], repeat=2)))
def test_projects_as_torch_does(bidirectional: bool, bias: bool) -> None:
    torch.manual_seed(0)
    assert_equal("lstm", module("lstm", num_layers=2, proj_size=2, bidirectional=bidirectional, bias=bias, dropout=0.3))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_computes_what_torch_does(kind: str, bias: bool) -> None:
    torch.manual_seed(0)
    cells = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}
    if kind in cells:
        cell = cells[kind](FEATURES, HIDDEN, bias=bias)
    else:
        cell = nn.RNNCell(FEATURES, HIDDEN, bias=bias, nonlinearity=kind.removeprefix("rnn_"))
    x, state = torch.randn(BATCH, FEATURES), [torch.randn(BATCH, HIDDEN) for _ in range(2 if kind == "lstm" else 1)]
    expected = cell(x, tuple(state) if kind == "lstm" else state[0])
    weights = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
    actual = unroll_cell(kind, x, state, weights, hidden=HIDDEN)
    for ours, theirs in zip(actual, expected if kind == "lstm" else [expected], strict=True):
        torch.testing.assert_close(ours, theirs)


def test_every_kind_has_gates() -> None:
    assert sorted(GATES) == sorted(KINDS)
