"""Copies of modules and tensors without their values."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .module_copy import copy_module

_CPU = torch.device("cpu")


def empty_like(tensor: Tensor, device: str = "cpu") -> Tensor:
    """Return a tensor without values of the same shape, stride and dtype."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def make_fake(bare: Tensor, mode: FakeTensorMode, *, requires_grad: bool = False) -> FakeTensor:
    """Return the fake tensor on the CPU that has a meta tensor behind it, in less time than its class.

    requires_grad: of it; that of the meta tensor does not count.
    """
    assert bare.is_meta
    fake = Tensor._make_subclass(FakeTensor, bare, requires_grad, dispatch_device=True, device_for_backend_keys=_CPU)
    if mode._allow_unsafe_data_ptr_access:
        torch._C._set_warn_deprecated_on_mutable_data_ptr(fake)
    else:
        torch._C._set_throw_on_mutable_data_ptr(fake)
    vars(fake).update(_list_attributes(), fake_mode=mode)
    return fake


@functools.cache
def _list_attributes() -> dict[str, Any]:
    """Return what its class gives to each fake tensor on the CPU that is made of nothing known."""
    attributes = dict(vars(FakeTensor(FakeTensorMode(), torch.empty(0, device="meta"), _CPU)))
    del attributes["fake_mode"]
    return attributes


def fake_like(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    """Return a fake tensor of the same shape, stride and dtype, on the CPU; a parameter for a parameter.

    To make one of the operators that torch gives for it takes several times as long, which counts for a whole model.
    """
    is_parameter = isinstance(tensor, nn.Parameter)
    fake = make_fake(empty_like(tensor, "meta"), mode, requires_grad=is_parameter and tensor.requires_grad)
    if is_parameter:
        fake._is_param = True
    return fake


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
    return copy_module(module, memo)


def dense_stride(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Return the stride that `torch.empty_like` gives a tensor of this shape and stride, in elements."""
    return torch.empty_like(torch.empty_strided(shape, stride, device="meta")).stride()
