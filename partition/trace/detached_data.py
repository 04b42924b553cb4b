"""`tensor.data` as a trace can follow it: reading it detaches, and assigning to it copies into the tensor.

torch.export loses track of a tensor that is read through `.data`, and takes it for a constant without a value.
"""

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

# The functions that a mode is given are bound to the property anew each time: equal, but not identical.
_READ, _WRITE = Tensor.data.__get__, Tensor.data.__set__  # type: ignore[attr-defined]


class DetachedData(TorchFunctionMode):
    """While active, `tensor.data` is `tensor.detach()`, and `tensor.data = values` is `tensor.detach().copy_(values)`.

    Values of another shape or dtype, which would make another tensor of it, are assigned as ever.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _READ:
            return args[0].detach()
        if func == _WRITE and (args[0].shape, args[0].dtype) == (args[1].shape, args[1].dtype):
            args[0].detach().copy_(args[1])
            return None
        return func(*args, **(kwargs or {}))
