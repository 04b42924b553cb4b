"""What a trial run of a block by hand is made with: values out of thin air, a copy of the module, and no trace."""

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from ..operators.leaf_module import TRACED_CALL, Shape, shape_of
from .axis_inference import dense_stride

# What becomes of normally distributed values: signs and sizes that a branch may ask for.
STYLES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda values: values,
    lambda values: values.abs(),
    lambda values: -values.abs(),
    lambda values: values * 100,
    torch.zeros_like,
)


def made_up(tensor: Tensor, number: int, *, state: bool) -> Tensor:
    """Values for a tensor, laid out as it is. Buffers are positive (a variance), parameters small."""
    out = torch.empty_strided(tensor.shape, dense(tensor).stride, dtype=tensor.dtype, device="cpu")
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return out.fill_(number % 2)
    if not state:
        return out.copy_(STYLES[number](torch.randn(tensor.shape)))
    return out.copy_(0.1 * torch.randn(tensor.shape) if tensor.requires_grad else 0.5 + torch.rand(tensor.shape))


def dense(tensor: Tensor) -> Shape:
    """The shape, in a layout where no two elements share memory."""
    shape = shape_of(tensor)
    return Shape(shape.shape, dense_stride(shape.shape, shape.stride), shape.dtype)


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Without what watches the trace."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        for _ in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
            stack.enter_context(_pop_mode_temporarily())
        yield


class _TracedStay(TorchFunctionMode):
    """While it is active, tensors of the trace that a module holds on to are not copied either."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and isinstance(args[0], FakeTensor):
            return args[0]
        return func(*args, **(kwargs or {}))


def untraced_copy(module: nn.Module, tensors: Iterable[Tensor]) -> nn.Module:
    """A copy whose Python state a run may change, and which is traced by nobody.

    No tensor of the trace is copied, as there is no memory behind it. tensors: what is not copied besides.
    """
    memo: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
    marks = [vars(inner).get(TRACED_CALL) for inner in module.modules()]
    with _TracedStay():
        made = copy.deepcopy(module, memo | {id(mark): mark for mark in marks})
    for inner in made.modules():
        vars(inner).pop(TRACED_CALL, None)
    return made
