"""`SeenTensors`: which tensors a call of a layer reads and overwrites where it is run without a trace."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..ir.dispatch_mode import DispatchMode
from ..trace.value_numbers import list_written
from .graph_segment import CannotRepeat


class SeenTensors(DispatchMode):
    """Watches operators while it is active. operands: what the layer is called with, and its parameters and buffers.

    draws: whether one of them draws random numbers.
    """

    def __init__(self, operands: Sequence[Tensor]) -> None:
        super().__init__()
        self._positions = {id(tensor): i for i, tensor in enumerate(operands)}
        self._memories = {tensor.untyped_storage()._cdata: i for i, tensor in reversed(list(enumerate(operands)))}
        self._own = set[int]()
        self._kept = list[Any]()  # so that no id is given twice
        self._written = set[int]()
        self._others = False
        self.draws = False

    def list_written(self) -> list[int]:
        """Return the positions of the overwritten operands; raise CannotRepeat where a tensor from outside was read."""
        if self._others:
            raise CannotRepeat("it reads a tensor that is neither its own nor an argument")
        return sorted(self._written)

    def run_operator(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """See `DispatchMode`."""
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor):
                self._others |= id(leaf) not in self._positions and id(leaf) not in self._own
        self.draws |= torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        result = func(*args, **kwargs)
        for tensor in list_written(func, args, kwargs):
            position = self._memories.get(tensor.untyped_storage()._cdata)
            if position is not None:
                self._written.add(position)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and id(leaf) not in self._positions:
                self._own.add(id(leaf))
                self._kept.append(leaf)
        return result
