"""Copies of modules and tensors without their values."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .module_copy import copy_module


def empty_like(tensor: Tensor, device: str = "cpu") -> Tensor:
    """Return a tensor without values of the same shape, stride and dtype."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def fake_like(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    """Return a fake tensor of the same shape, stride and dtype, on the CPU; a parameter for a parameter.

    To make one of the operators that torch gives for it takes several times as long, which counts for a whole model.
    """
    is_parameter = isinstance(tensor, nn.Parameter)
    gradient = is_parameter and tensor.requires_grad
    return FakeTensor(mode, empty_like(tensor, "meta"), "cpu", requires_grad=gradient, _is_param=is_parameter)


def empty_copy(module: nn.Module, empty: Callable[[Tensor], Tensor]) -> nn.Module:
    """Return a copy of a module whose parameters and buffers are made by `empty`; tied ones stay tied."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        copied = empty(tensor)
        is_made = isinstance(copied, nn.Parameter) or not isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = copied if is_made else nn.Parameter(copied, tensor.requires_grad)
    for submodule in module.modules():
        for value in vars(submodule).values():
            if isinstance(value, Tensor) and not value.is_leaf:  # left by a computation, of weight_norm for example
                memo[id(value)] = value.detach()
            elif type(value) is OrderedDict and not value:  # a dozen in each, which take most of the time of a copy
                memo[id(value)] = OrderedDict()
    return copy_module(module, memo)


def dense_stride(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Return the stride that `torch.empty_like` gives a tensor of this shape and stride, in elements."""
    return torch.empty_like(torch.empty_strided(shape, stride, device="meta")).stride()
