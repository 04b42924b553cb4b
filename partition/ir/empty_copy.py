"""Copies of modules without values: parameters and buffers are made anew, empty, and the caller's stay as they are."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def empty_like(tensor: Tensor, device: str = "cpu") -> Tensor:
    """A tensor of the same shape, layout and dtype."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def hollow(module: nn.Module, empty: Callable[[Tensor], Tensor]) -> nn.Module:
    """A copy whose parameters and buffers are those that `empty` makes for them; tied ones stay tied."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        made = empty(tensor)
        memo[id(tensor)] = nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
    for submodule in module.modules():
        for value in vars(submodule).values():
            if isinstance(value, Tensor) and not value.is_leaf:  # left by a computation, of weight_norm for example
                memo[id(value)] = value.detach()
    return copy.deepcopy(module, memo)
