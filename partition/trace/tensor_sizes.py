"""Sizes that a model takes out of a tensor, as `torch.zeros(lengths[0], 8)` does, as a trace can follow them."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

_MAKERS = (torch.zeros, torch.ones, torch.empty, torch.full, torch.rand, torch.randn, torch.arange)


class TensorSizes(TorchFunctionMode):
    """While active, functions that make a tensor take a size that is a tensor for the number in it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _MAKERS and any(isinstance(size, Tensor) for size in args):
            args = tree_map(lambda size: size.item() if isinstance(size, Tensor) else size, args)
        return func(*args, **(kwargs or {}))
