"""Recurrent nets without data: one operator each, which stands in for torch's, has its arguments and computes nothing.

Torch takes them apart into their time steps. Over packed sequences it cannot, since how many steps there are depends on
data; over others it takes long.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

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
for _prefix, _tags in (("", ()), ("random_", (torch.Tag.nondeterministic_seeded,))):
    _LIBRARY.define(  # type: ignore[no-untyped-call]
        f"{_prefix}lstm(Tensor input, Tensor[] hx, {_TAIL}, bool batch_first) -> (Tensor, Tensor, Tensor)", tags=_tags
    )
    for _name in ("gru", "rnn_tanh", "rnn_relu"):
        _LIBRARY.define(  # type: ignore[no-untyped-call]
            f"{_prefix}{_name}(Tensor input, Tensor hx, {_TAIL}, bool batch_first) -> (Tensor, Tensor)", tags=_tags
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
# Those over other sequences have the names of torch's, too, as nodes of a trace.
WHOLE = {
    _cutset.lstm.default: _aten.lstm.input,
    _cutset.gru.default: _aten.gru.input,
    _cutset.rnn_tanh.default: _aten.rnn_tanh.input,
    _cutset.rnn_relu.default: _aten.rnn_relu.input,
}
_VF = torch._VF


def _stand_in(name: str) -> Callable[..., Any]:
    def run(net: Any, *args: Any, **kwargs: Any) -> Any:
        lists: list[Any] = [list(arg) if isinstance(arg, tuple) else arg for arg in args]
        if isinstance(lists[3], list):  # the second argument is `batch_sizes`
            return getattr(_cutset, f"packed_{name}")(*lists)
        layers, dropout, train = lists[4:7]
        draws = train and dropout > 0 and layers > 1
        if kwargs or torch.is_autocast_enabled("cpu") or (draws and get_proxy_mode() is not None):
            return net(*args, **kwargs)
        return getattr(_cutset, f"random_{name}" if draws else name)(*lists)

    return run


def _pad(pad: Any, *args: Any, **kwargs: Any) -> Any:
    return _cutset.pad_packed(*args, **kwargs)


def _pack(pack: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    data, batch_sizes = pack(*args, **kwargs)
    return data, batch_sizes.to(torch.int64)  # as they are, but torch's fake ones have the dtype of the data


RECURRENT_NETS: Table = {
    _VF._pad_packed_sequence: _pad,
    _VF._pack_padded_sequence: _pack,
    **{getattr(_VF, name): _stand_in(name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}


def _empty_states(data: Tensor, hx: Sequence[Tensor], bidirectional: bool) -> tuple[Tensor, ...]:
    hidden = hx[0].shape[-1] * (2 if bidirectional else 1)
    return data.new_empty(data.shape[0], hidden), *(torch.empty_like(state) for state in hx)


def _empty_lstm(data: Tensor, batch_sizes: Tensor, hx: Sequence[Tensor], *rest: Any) -> tuple[Tensor, ...]:
    return _empty_states(data, hx, rest[-1])


def _empty_rnn(data: Tensor, batch_sizes: Tensor, hx: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _empty_states(data, [hx], rest[-1])


def _empty_output(input: Tensor, hx: Sequence[Tensor], *rest: Any) -> tuple[Tensor, ...]:
    bidirectional, batch_first = rest[-2:]
    steps, batch = (input.shape[1], input.shape[0]) if batch_first else (input.shape[0], input.shape[1])
    output = input.new_empty(steps, batch, hx[0].shape[-1] * (2 if bidirectional else 1))
    return output.transpose(0, 1) if batch_first else output, *(state.new_empty(state.shape) for state in hx)


def _empty_rnn_output(input: Tensor, hx: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _empty_output(input, [hx], *rest)


def _empty_padded(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Tensor, Tensor]:
    batch, steps = torch.library.get_ctx().new_dynamic_size(), total_length
    if steps <= 0:
        steps = batch_sizes.shape[0]
    leading = (batch, steps) if batch_first else (steps, batch)
    return data.new_empty(*leading, *data.shape[1:]), batch_sizes.new_empty(batch)


class NoBackwardError(Exception):
    """A step asks for a gradient through a recurrent net, which an operator that computes nothing does not have."""


def _refuse_backward(context: Any, *gradients: Any) -> Any:
    raise NoBackwardError("it asks for a gradient through a recurrent net, which a trace does not show")


_EMPTY: dict[Any, Callable[..., Any]] = {
    _cutset.packed_lstm.default: _empty_lstm,
    _cutset.pad_packed.default: _empty_padded,
}
for _prefix in ("", "random_"):
    for _name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        _operator = getattr(_cutset, _prefix + _name).default
        _EMPTY[_operator] = _empty_output if _name == "lstm" else _empty_rnn_output
for _operator in dict.fromkeys((*STANDS_FOR, *_EMPTY)):
    _qualified = _operator.name()
    _empty = _EMPTY.get(_operator, _empty_rnn)
    torch.library.register_fake(_qualified, _empty, lib=_LIBRARY)
    # It is registered so that a trace knows which results carry a gradient.
    torch.library.register_autograd(_qualified, _refuse_backward, lib=_LIBRARY)
