"""What is called in the stead of functions that a trace would get wrong.

`tensor.data`: torch.export loses track of a tensor that is read through it, and takes it for a constant without a
value. Here reading it detaches, and assigning to it copies into the tensor. Sizes that are tensors: the number in them
is taken.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

# Function -> what is called for it, whose first argument is the function.
Table = Mapping[Callable[..., Any], Callable[..., Any]]


class StandIns(TorchFunctionMode):
    """While active, the functions of some tables have stand-ins; of two for one function, the later calls the earlier.

    One mode for all, since a trace makes thousands of calls and most of them, such as reads of a shape, have none.
    """

    def __init__(self, *tables: Table) -> None:
        super().__init__()
        self._calls: dict[Any, Callable[..., Any]] = {}
        for table in tables:
            for function, stand_in in table.items():
                self._calls[function] = partial(stand_in, self._calls.get(function, function))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._calls.get(func, func)(*args, **(kwargs or {}))


def _read_data(read: Any, tensor: Tensor, *owner: Any) -> Tensor:
    return tensor.detach()


def _write_data(write: Any, tensor: Tensor, values: Any) -> Any:
    """Copy values into a tensor. Those of another shape or dtype make another tensor of it, as ever."""
    if (tensor.shape, tensor.dtype) != (values.shape, values.dtype):
        return write(tensor, values)
    tensor.detach().copy_(values)
    return None


def _take_numbers(make: Any, *args: Any, **kwargs: Any) -> Any:
    return make(*tree_map(lambda size: size.item() if isinstance(size, Tensor) else size, args), **kwargs)


DETACHED_DATA: Table = {Tensor.data.__get__: _read_data, Tensor.data.__set__: _write_data}  # type: ignore[attr-defined]
SIZES_IN_TENSORS: Table = dict.fromkeys(
    (torch.zeros, torch.ones, torch.empty, torch.full, torch.rand, torch.randn, torch.arange), _take_numbers
)
