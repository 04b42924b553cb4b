"""What a trial run of a leaf module needs: inputs of random values, and a copy of the module."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from ..ir.empty_copy import dense_stride
from ..ir.module_copy import copy_module
from ..operators.leaf_module import TRACED_CALL, TensorSpec, tensor_spec

# Applied to normally distributed values, so that they have the signs and sizes that a branch may ask for.
STYLES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda values: values,
    lambda values: values.abs(),
    lambda values: -values.abs(),
    lambda values: values * 100,
    torch.zeros_like,
)

_DRAWN_IN_PLACE = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def make_trial_input(tensor: Tensor, number: int) -> Tensor:
    """Return values for an argument, laid out as it is. number: of the trial, an index into STYLES."""
    out = _make_empty(tensor)
    if is_whole(tensor):
        return out.fill_(number % 2)
    return out.copy_(STYLES[number](torch.randn(tensor.shape)))


class TrialStates:
    """Makes values for the states of a leaf module, those of all runs in one memory: to place large ones takes long."""

    def __init__(self) -> None:
        self._memories: dict[str, Tensor] = {}
        self._drawn: set[str] = set()  # whose memory has random values of a parameter

    def make(self, name: str, tensor: Tensor, number: int, known: Tensor | None) -> Tensor:
        """Return a tensor with the values of a state, laid out as it is; those that were made before are lost.

        number: as of `make_trial_input`. known: the values; without them they are random ones: buffers positive (as
        variances are), parameters small, and in the next run of the other sign.
        """
        if known is not None and known.layout is not torch.strided:
            return known.detach().clone()
        memory = self._memories.get(name)
        if memory is None or memory.untyped_storage().nbytes() < memory.nbytes:  # which the module may have freed
            memory = self._memories[name] = _make_empty(tensor)
            self._drawn.discard(name)
        if known is not None:
            memory.copy_(known.detach())
            self._drawn.discard(name)
        elif is_whole(tensor):
            memory.fill_(number % 2)
        elif name in self._drawn:
            memory.neg_()
        else:
            low, high = (-0.2, 0.2) if tensor.requires_grad else (0.5, 1.5)
            if memory.dtype not in _DRAWN_IN_PLACE:
                memory.copy_(torch.empty(memory.shape).uniform_(low, high))
            else:
                memory.uniform_(low, high)
                self._drawn.update([name] if tensor.requires_grad else [])
        return memory.detach()


def _make_empty(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, dense_spec(tensor).stride, dtype=tensor.dtype, device="cpu")


def is_whole(tensor: Tensor) -> bool:
    """Whether a tensor is of whole numbers, truth values included."""
    return not (tensor.is_floating_point() or tensor.is_complex())


def dense_spec(tensor: Tensor) -> TensorSpec:
    """Return the tensor's spec in a layout where no two elements share memory."""
    spec = tensor_spec(tensor)
    return TensorSpec(spec.shape, dense_stride(spec.shape, spec.stride), spec.dtype)


class _KeepTraced(TorchFunctionMode):
    """While it is active, tensors of the trace that a module holds on to are not copied either."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and isinstance(args[0], FakeTensor):
            return args[0]
        return func(*args, **(kwargs or {}))


def copy_untraced(module: nn.Module, tensors: Iterable[Tensor]) -> nn.Module:
    """Return a copy of a module whose Python state a run may change, and whose leaf modules are plain modules again.

    Tensors of the trace are not copied, as there is no memory behind them. tensors: others that are not copied.
    """
    memo: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
    marks = [vars(inner).get(TRACED_CALL) for inner in module.modules()]
    with _KeepTraced():
        copied = copy_module(module, memo | {id(mark): mark for mark in marks})
    for inner in copied.modules():
        vars(inner).pop(TRACED_CALL, None)
    return copied
