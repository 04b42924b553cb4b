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


def make_trial_input(tensor: Tensor, number: int, *, state: bool) -> Tensor:
    """Return values for a tensor, laid out as it is. Buffers are positive (as variances are), parameters are small.

    number: of the trial, an index into STYLES.
    """
    out = torch.empty_strided(tensor.shape, dense_spec(tensor).stride, dtype=tensor.dtype, device="cpu")
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return out.fill_(number % 2)
    if not state:
        return out.copy_(STYLES[number](torch.randn(tensor.shape)))
    return out.copy_(0.1 * torch.randn(tensor.shape) if tensor.requires_grad else 0.5 + torch.rand(tensor.shape))


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
