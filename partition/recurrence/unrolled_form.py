"""The unrolled form of torch's recurrent operators: a few ordinary operators for each time step.

T: time steps, B: batch, G: gates, H: hidden units, P: features of the hidden state (H, or `proj_size` of an LSTM).

1. One product of all inputs of a layer with W_ih gives the inputs of the gates, [T, B, G, H].
2. Each time step multiplies the hidden state with W_hh, [B, G, H], and computes the next state, [B, P].
3. The hidden states are the inputs of the next layer, in a few chunks of time steps, so that a layer can start before
   the one below it has finished.

The functions compute on tensors, and are traced by torch.fx with proxies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..operators.rules import recurrent

aten, cutset = torch.ops.aten, torch.ops.cutset
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
MAX_CHUNKS = 8  # in which a layer passes its hidden states to the next one
Value = Any  # a tensor, or a proxy of one


@dataclass(frozen=True)
class RecurrentCall:
    """What a recurrent operator computes, apart from its tensors.

    kind: one of GATES. features: of the hidden state. dropout: between layers, 0 where nothing is dropped. weights: how
    many each direction of a layer has.
    """

    kind: str
    steps: int
    batch: int
    hidden: int
    features: int
    layers: int
    directions: int
    biases: bool
    weights: int
    dropout: float
    batch_first: bool

    @property
    def cells(self) -> int:
        """How often a cell is computed."""
        return self.steps * self.layers * self.directions


@dataclass(frozen=True)
class _Weights:
    """The weights of one direction of a layer: [G H, features], [G H, P], [G H], [G H], [P, H]."""

    w_ih: Value
    w_hh: Value
    b_ih: Value = None
    b_hh: Value = None
    w_hr: Value = None


_State = tuple[Value, ...]  # the hidden state [B, P], and of an LSTM the cell state [B, H]


def unroll(net: RecurrentCall, x: Value, states: Sequence[Value], parameters: Sequence[Value]) -> tuple[Value, ...]:
    """Return the output [T, B, directions P], and the last states, each [layers directions, B, P or H].

    x: [T, B, features], with `batch_first` [B, T, features], and so is the output. states: the initial ones, of the
    form of the last ones. parameters: as torch's operator gets them.
    """
    if net.batch_first:
        x = aten.transpose.int(x, 0, 1)
    weights = _split_weights(net, parameters)
    chunks, bounds = [x], [(0, net.steps)]
    last: list[_State] = []
    hidden: list[list[Value]] = []
    for layer in range(net.layers):
        if layer:
            chunks, bounds = _join_steps(net, hidden)
        hidden = []
        for direction in range(net.directions):
            number = layer * net.directions + direction
            first = tuple(aten.select.int(state, 0, number) for state in states)
            outputs, end = _run_direction(
                net, chunks, bounds, state=first, weights=weights[number], reverse=direction == 1
            )
            hidden.append(outputs)
            last.append(end)
    output = _join(net, [aten.stack.default(outputs, 0) for outputs in hidden])
    if net.batch_first:
        output = aten.transpose.int(output, 0, 1)
    return output, *(aten.stack.default([end[i] for end in last], 0) for i in range(len(states)))


def unroll_cell(kind: str, x: Value, state: Sequence[Value], parameters: Sequence[Value], *, hidden: int) -> _State:
    """Return the next state of a single cell, as of `torch.nn.LSTMCell`. x: [B, features]; hidden: H."""
    weights = _Weights(*parameters)
    gates = aten.linear.default(x, weights.w_ih, weights.b_ih)
    if GATES[kind] > 1:
        gates = aten.unflatten.int(gates, 1, [GATES[kind], hidden])
    return _step(kind, gates, tuple(state), weights, hidden=hidden)


def _split_weights(net: RecurrentCall, parameters: Sequence[Value]) -> list[_Weights]:
    """Divide the weights among layers and directions."""
    groups = [parameters[at : at + net.weights] for at in range(0, len(parameters), net.weights)]
    count = 4 if net.biases else 2
    return [_Weights(*g[:count], **({"w_hr": g[count]} if len(g) > count else {})) for g in groups]


def _join_steps(net: RecurrentCall, hidden: Sequence[Sequence[Value]]) -> tuple[list[Value], list[tuple[int, int]]]:
    """Return the inputs of the next layer in chunks, and the time steps of each. hidden: by direction and step.

    The mask of dropout is drawn as torch draws it, as one of all time steps.
    """
    # In two directions the first chunk is ready when all are.
    length = net.steps if net.directions > 1 else -(-net.steps // MAX_CHUNKS)
    bounds = [(start, min(start + length, net.steps)) for start in range(0, net.steps, length)]
    chunks = [_join(net, [aten.stack.default(list(steps[a:b]), 0) for steps in hidden]) for a, b in bounds]
    if net.dropout:
        shape = [net.steps, net.batch, net.directions * net.features]
        mask = aten.dropout.default(aten.new_ones.default(chunks[0], shape), net.dropout, True)
        parts = [aten.slice.Tensor(mask, 0, a, b, 1) for a, b in bounds]
        chunks = [aten.mul.Tensor(chunk, part) for chunk, part in zip(chunks, parts, strict=True)]
    return chunks, bounds


def _join(net: RecurrentCall, directions: list[Value]) -> Value:
    return aten.cat.default(directions, 2) if net.directions > 1 else directions[0]


def _run_direction(
    net: RecurrentCall,
    chunks: Sequence[Value],
    bounds: Sequence[tuple[int, int]],
    *,
    state: _State,
    weights: _Weights,
    reverse: bool,
) -> tuple[list[Value], _State]:
    """Return the hidden states of all time steps, and the last state, of one direction of a layer."""
    gates: list[Value] = []
    for chunk, (start, stop) in zip(chunks, bounds, strict=True):
        product = aten.linear.default(chunk, weights.w_ih, weights.b_ih)
        if GATES[net.kind] > 1:
            product = aten.unflatten.int(product, 2, [GATES[net.kind], net.hidden])
        gates += [aten.select.int(product, 0, i) for i in range(stop - start)]
    outputs: list[Value] = [None] * net.steps
    for t in reversed(range(net.steps)) if reverse else range(net.steps):
        state = _step(net.kind, gates[t], state, weights, hidden=net.hidden)
        outputs[t] = state[0]
    return outputs, state


def _step(kind: str, inputs: Value, state: _State, weights: _Weights, *, hidden: int) -> _State:
    """Return the next state. inputs: what the gates get from the input, [B, G, H]; [B, H] where there is one gate."""
    own = aten.linear.default(state[0], weights.w_hh, weights.b_hh)
    if kind in ("rnn_tanh", "rnn_relu"):
        total = aten.add.Tensor(inputs, own)
        return ((aten.tanh if kind == "rnn_tanh" else aten.relu).default(total),)
    own = aten.unflatten.int(own, 1, [GATES[kind], hidden])
    if kind == "gru":
        return (getattr(cutset, recurrent.GRU_HIDDEN).default(inputs, own, state[0]),)
    cell = getattr(cutset, recurrent.LSTM_CELL).default(inputs, own, state[1])
    output = getattr(cutset, recurrent.LSTM_HIDDEN).default(inputs, own, cell)
    return (output if weights.w_hr is None else aten.linear.default(output, weights.w_hr)), cell
