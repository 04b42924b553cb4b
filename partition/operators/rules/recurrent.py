"""Sharding rules of the elementwise part of a time step of an LSTM or a GRU, and the operators themselves.

Hidden units are independent of each other there. The operators are made of torch's own.

Hochreiter and Schmidhuber, "Long short-term memory", 1997, with forget gates (Gers et al., 2000); Cho et al., "Learning
phrase representations using RNN encoder-decoder", 2014, in the form of cuDNN, which torch has.

B: batch, G: gates (4 of an LSTM, in torch's order: input, forget, cell, output; 3 of a GRU: reset, update, new), H:
hidden units. `inputs` is what the gates get from the input, W_ih x + b_ih, and `hidden` what they get from the last
hidden state, W_hh h + b_hh; both [B, G, H].
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..sharding.cost_class import FUNCTION
from ..sharding.sharding_rule import sharding_rule
from ..sharding.signature import Labels, Signature, Site

LSTM_CELL, LSTM_HIDDEN, GRU_HIDDEN = "lstm_cell", "lstm_hidden", "gru_hidden"
FUNCTIONS = {LSTM_CELL: 5.0, LSTM_HIDDEN: 3.0, GRU_HIDDEN: 5.0}  # evaluations for each hidden unit

_LIBRARY = torch.library.Library("cutset", "FRAGMENT")  # type: ignore[no-untyped-call]


def lstm_cell(inputs: Tensor, hidden: Tensor, cell: Tensor) -> Tensor:
    """Return the next cell state [B, H] of an LSTM: sigmoid(f) * cell + sigmoid(i) * tanh(g)."""
    i, f, g = (inputs[:, :3] + hidden[:, :3]).unbind(1)
    return torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)


def lstm_hidden(inputs: Tensor, hidden: Tensor, cell: Tensor) -> Tensor:
    """Return the next hidden state [B, H] of an LSTM from its next cell state: sigmoid(o) * tanh(cell)."""
    return torch.sigmoid(inputs[:, 3] + hidden[:, 3]) * torch.tanh(cell)


def gru_hidden(inputs: Tensor, hidden: Tensor, state: Tensor) -> Tensor:
    """Return the next hidden state [B, H] of a GRU: n + z * (state - n) with n = tanh(x_n + r * h_n)."""
    r, z = torch.sigmoid(inputs[:, :2] + hidden[:, :2]).unbind(1)
    n = torch.tanh(inputs[:, 2] + r * hidden[:, 2])
    return n + z * (state - n)


def _define(name: str, last: str, function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Enter an operator that is the function itself, so that its gradient is that of the operators within."""
    schema = f"{name}(Tensor inputs, Tensor hidden, Tensor {last}) -> Tensor"
    _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, function, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]


_define(LSTM_CELL, "cell", lstm_cell)
_define(LSTM_HIDDEN, "cell", lstm_hidden)
_define(GRU_HIDDEN, "state", gru_hidden)


@sharding_rule(*(f"cutset.{name}" for name in FUNCTIONS), cost=FUNCTION)
def recurrent_cell(site: Site) -> Signature | None:
    """y[b, h] = f(inputs[b, :, h], hidden[b, :, h], state[b, h])"""
    gates: Labels = ["b", None, "h"]
    last = "state" if "state" in site.arguments else "cell"
    work = FUNCTIONS[site.target.split(".")[1]]
    return Signature({"inputs": gates, "hidden": gates, last: ["b", "h"]}, ["b", "h"], work=work)
