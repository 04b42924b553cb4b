"""Conditions on random numbers that always come out alike, as of a layer that is dropped with probability 0.

    if torch.rand([]) < self.layerdrop: continue

A trace cannot branch on a value. But a number of torch.rand is at least 0 and less than 1, so it is never less than 0.
"""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_LESS = (Tensor.__lt__, Tensor.lt, torch.lt)


class KnownConditions(TorchFunctionMode):
    """While active, `torch.rand(...) < p` is known to be false where p is at most 0, and true where it is 1 or more."""

    def __init__(self) -> None:
        super().__init__()
        self._drawn: dict[int, Tensor] = {}
        self._known: dict[int, tuple[Tensor, bool]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__bool__ and id(args[0]) in self._known:
            return self._known[id(args[0])][1]
        result = func(*args, **(kwargs or {}))
        if func is torch.rand:
            self._drawn[id(result)] = result
        elif func in _LESS and id(args[0]) in self._drawn and type(args[1]) in (int, float) and not 0 < args[1] < 1:
            self._known[id(result)] = result, args[1] >= 1
        return result
