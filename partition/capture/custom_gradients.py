"""Gradients that are not those of the operators: torch.export drops them without a word, so they are refused here.

These are autograd functions with a backward of their own, hooks on gradients, and `torch.no_grad` within an autocast.
"""

import inspect
import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode

from ..ir.autocast import autocast_depth
from .leaf_selection import inside
from .source_location import TORCH
from ..ir.pytree import leaves_of
from .tracing_error import Untraceable

FIX = "write it with operators and detach()"


class RefusesDropped(TorchFunctionMode):
    """While it is active, `tensor.register_hook` raises Untraceable, and so does `torch.no_grad` within an autocast."""

    def __init__(self) -> None:
        super().__init__()
        self._outside = autocast_depth()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.register_hook:
            raise Untraceable(f"the model hooks a gradient at {_user_line()}", rewrite=FIX)
        if func is torch._C._set_grad_enabled and args[0] != torch.is_grad_enabled():
            self._demand_no_autocast()
        return func(*args, **(kwargs or {}))

    def _demand_no_autocast(self) -> None:
        if autocast_depth() > self._outside:
            raise Untraceable(
                f"the model switches gradients on or off within torch.autocast at {_user_line()}",
                rewrite="write torch.autocast within torch.no_grad, or detach()",
            )


def _user_line() -> str:
    frames = [f for f in traceback.extract_stack()[:-1] if not f.filename.startswith((TORCH, __file__))]
    return _place(frames[-1].filename, frames[-1].lineno)


def refuse_hooks(model: nn.Module, blocks: Sequence[str] = ()) -> None:
    """Raise Untraceable where a module or a parameter has a hook on its gradients.

    blocks: names of modules that are not traced: their hooks are called when they run.
    """
    for name, module in model.named_modules():
        own = any(name == block or inside(name, block) for block in blocks)
        if (module._backward_hooks or module._backward_pre_hooks) and not own:
            raise Untraceable(
                f"the module {name or 'itself'} has a backward hook", rewrite=FIX, modules=[name] if name else ()
            )
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise Untraceable(f"the parameter {name} has a hook on its gradient", rewrite=FIX)


def refuse_functions(result: Tensor, model: nn.Module, again: Callable[[], object]) -> None:
    """Raise Untraceable where a result was computed by an autograd function that is not torch's own.

    again: computes the result another time, to see which module of `model` does it.
    """
    function = _own_function(result)
    if function is None:
        return
    with _Locates(model) as located:
        again()
    raise Untraceable(
        f"the model computes gradients with {function.__name__}.backward{_defined(function)}",
        rewrite=FIX,
        modules=located.modules,
    )


class _Locates:
    """While it is active, finds the innermost module that uses a function of one's own, and those around it."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self.modules: list[str] = []

    def __enter__(self) -> "_Locates":
        self._handle = register_module_forward_hook(self._after)
        return self

    def __exit__(self, *ended: object) -> None:
        self._handle.remove()

    def _after(self, module: nn.Module, given: Any, output: Any) -> None:
        name = self._names.get(id(module), "")
        innermost = not self.modules and not _uses_own(given)
        if name and _uses_own(output) and (innermost or any(inside(found, name) for found in self.modules)):
            self.modules.append(name)


def _uses_own(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) and _own_function(leaf) is not None for leaf in leaves_of(value))


def _own_function(result: Tensor) -> Any:
    """An autograd function that is not torch's own, among those that computed a result; None where there is none."""
    pending, seen = list[Any]([result.grad_fn]), set[Any]()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        pending += [before for before, _ in node.next_functions]
        function = getattr(type(node), "_forward_cls", None)
        if function is not None and not function.__module__.startswith("torch."):
            return function
    return None


def _defined(function: Callable[..., Any]) -> str:
    try:
        return f" at {_place(inspect.getsourcefile(function), inspect.getsourcelines(function)[1])}"
    except (OSError, TypeError):
        return ""


def _place(file: str | None, line: int | None) -> str:
    return f"{os.path.basename(file or '')}:{line}"
