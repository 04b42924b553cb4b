"""Recurrent nets over packed sequences, in a trace: one operator each, since how many steps they take depends on data.

Torch takes `lstm` over packed data apart into its steps even in a trace without data, and cannot. The operators here
stand in for those of torch, whose arguments they have; they compute nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .stand_ins import Table

_TAIL = "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional"
_LIBRARY = torch.library.Library("cutset", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    f"packed_lstm(Tensor data, Tensor batch_sizes, Tensor[] hx, {_TAIL}) -> (Tensor, Tensor, Tensor)"
)
for _name in ("gru", "rnn_tanh", "rnn_relu"):
    _LIBRARY.define(  # type: ignore[no-untyped-call]
        f"packed_{_name}(Tensor data, Tensor batch_sizes, Tensor hx, {_TAIL}) -> (Tensor, Tensor)"
    )
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "pad_packed(Tensor data, Tensor batch_sizes, bool batch_first, Scalar padding_value, int total_length)"
    " -> (Tensor, Tensor)"
)

_aten, _cutset = torch.ops.aten, torch.ops.cutset
STANDS_FOR = {
    _cutset.packed_lstm.default: _aten.lstm.data,
    _cutset.packed_gru.default: _aten.gru.data,
    _cutset.packed_rnn_tanh.default: _aten.rnn_tanh.data,
    _cutset.packed_rnn_relu.default: _aten.rnn_relu.data,
    _cutset.pad_packed.default: _aten._pad_packed_sequence.default,
}
_VF = torch._VF


def _run_packed(name: str) -> Callable[..., Any]:
    def run(net: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(args[3], list | tuple):  # else the second argument is `batch_sizes`
            return net(*args, **kwargs)
        return getattr(_cutset, f"packed_{name}")(*(list(arg) if isinstance(arg, tuple) else arg for arg in args))

    return run


def _pad(pad: Any, *args: Any, **kwargs: Any) -> Any:
    return _cutset.pad_packed(*args, **kwargs)


def _pack(pack: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    data, batch_sizes = pack(*args, **kwargs)
    return data, batch_sizes.to(torch.int64)  # as they are, but torch's fake ones have the dtype of the data


PACKED_SEQUENCES: Table = {
    _VF._pad_packed_sequence: _pad,
    _VF._pack_padded_sequence: _pack,
    **{getattr(_VF, name): _run_packed(name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}


def _empty_states(data: Tensor, hx: Sequence[Tensor], bidirectional: bool) -> tuple[Tensor, ...]:
    hidden = hx[0].shape[-1] * (2 if bidirectional else 1)
    return data.new_empty(data.shape[0], hidden), *(torch.empty_like(state) for state in hx)


def _empty_lstm(data: Tensor, batch_sizes: Tensor, hx: Sequence[Tensor], *rest: Any) -> tuple[Tensor, ...]:
    return _empty_states(data, hx, rest[-1])


def _empty_rnn(data: Tensor, batch_sizes: Tensor, hx: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _empty_states(data, [hx], rest[-1])


def _empty_padded(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Tensor, Tensor]:
    batch, steps = torch.library.get_ctx().new_dynamic_size(), total_length
    if steps <= 0:
        steps = batch_sizes.shape[0]
    leading = (batch, steps) if batch_first else (steps, batch)
    return data.new_empty(*leading, *data.shape[1:]), batch_sizes.new_empty(batch)


def _refuse_backward(context: Any, *gradients: Any) -> Any:
    raise AssertionError("a stand-in has no gradient")


_EMPTY: dict[Any, Callable[..., Any]] = {
    _cutset.packed_lstm.default: _empty_lstm,
    _cutset.pad_packed.default: _empty_padded,
}
for _operator in STANDS_FOR:
    _qualified = _operator.name()  # type: ignore[no-untyped-call]
    _empty = _EMPTY.get(_operator, _empty_rnn)
    torch.library.register_fake(_qualified, _empty, lib=_LIBRARY)
    # It is registered so that a trace knows which results carry a gradient.
    torch.library.register_autograd(_qualified, _refuse_backward, lib=_LIBRARY)
