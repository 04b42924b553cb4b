"""The operators that stand for a call of a layer that is not run, where torch computes without data.

One gives its results, a second the results of a layer that draws random numbers, a third what it leaves in a buffer.
They carry gradients and numbers of values (see `ValueNumbers`), and never reach a graph.
"""

import functools
from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

_LIBRARY = torch.library.Library("cutset", "FRAGMENT")  # type: ignore[no-untyped-call]
_SCHEMA = "(Tensor[] operands, str form) -> Tensor[]"
_LIBRARY.define(f"repeated_layer{_SCHEMA}")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    f"repeated_random_layer{_SCHEMA}", tags=(torch.Tag.nondeterministic_seeded,)
)
_LIBRARY.define("repeated_write(Tensor(a!) buffer, Tensor[] operands, str form) -> ()")  # type: ignore[no-untyped-call]


class ResultSpec(msgspec.Struct, frozen=True):
    """A result of a layer. stride: in elements; dtype: such as "float32"; gradient: whether it asks for one."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    gradient: bool


class LayerForm(msgspec.Struct, frozen=True):
    """What a call gives. computation: says how its results follow from its operands, the same for the same."""

    results: tuple[ResultSpec, ...]
    computation: str = ""


def enter_results(operands: Sequence[Tensor], form: LayerForm, *, draws: bool) -> list[Tensor]:
    """Return the results of a call, without values."""
    operator = torch.ops.cutset.repeated_random_layer if draws else torch.ops.cutset.repeated_layer
    results: list[Tensor] = operator(list(operands), msgspec.json.encode(form).decode())
    pairs = zip(results, form.results, strict=True)
    return [tensor.detach() if tensor.requires_grad and not spec.gradient else tensor for tensor, spec in pairs]


def enter_write(buffer: Tensor, operands: Sequence[Tensor], form: LayerForm, position: int) -> None:
    """Overwrite a buffer as a call does. position: of the buffer among those that the call overwrites."""
    computation = f"{position} {form.computation}"
    torch.ops.cutset.repeated_write(buffer, list(operands), computation)


@functools.lru_cache(maxsize=1024)
def _decode(text: str) -> LayerForm:
    return msgspec.json.decode(text, type=LayerForm)


@torch.library.register_fake("cutset::repeated_layer", lib=_LIBRARY)  # type: ignore[untyped-decorator]
@torch.library.register_fake("cutset::repeated_random_layer", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _empty_results(operands: Sequence[Tensor], form: str) -> list[Tensor]:
    specs = _decode(form).results
    return [torch.empty_strided(s.shape, s.stride, dtype=getattr(torch, s.dtype), device="cpu") for s in specs]


@torch.library.register_fake("cutset::repeated_write", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _write_nothing(buffer: Tensor, operands: Sequence[Tensor], form: str) -> None:
    return None


def _refuse_backward(context: Any, *gradients: Any) -> Any:
    raise AssertionError("a repeated layer in a trace has no gradient")


# They are registered so that a trace knows which results carry a gradient.
torch.library.register_autograd("cutset::repeated_layer", _refuse_backward, lib=_LIBRARY)
torch.library.register_autograd("cutset::repeated_random_layer", _refuse_backward, lib=_LIBRARY)
