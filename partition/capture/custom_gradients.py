"""Refuses gradients that are not those of the operators, since torch.export drops them without a word.

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
from ..ir.pytree import iter_leaves
from ..operators.step_module import MODEL, STEP
from ..trace.user_frames import is_users_file
from .leaf_selection import is_inside
from .tracing_error import Untraceable

FIX = "write it with operators and detach()"
TRACED = ("torch._library.", "torch._higher_order_ops.")  # where torch has gradients of operators, which a trace keeps


class RefuseDroppedGradients(TorchFunctionMode):
    """While it is active, `tensor.register_hook` raises Untraceable, and so does `torch.no_grad` within an autocast."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = autocast_depth()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.register_hook:
            raise Untraceable(f"the model hooks a gradient at {_find_user_line()}", rewrite=FIX)
        if func is torch._C._set_grad_enabled and args[0] != torch.is_grad_enabled():
            self._demand_no_autocast()
        return func(*args, **(kwargs or {}))

    def _demand_no_autocast(self) -> None:
        if autocast_depth() > self._depth:
            raise Untraceable(
                f"the model switches gradients on or off within torch.autocast at {_find_user_line()}",
                rewrite="write torch.autocast within torch.no_grad, or detach()",
            )


def _find_user_line() -> str:
    frames = [f for f in traceback.extract_stack()[:-1] if is_users_file(f.filename)]
    return _format_place(frames[-1].filename, frames[-1].lineno)


def refuse_hooks(model: nn.Module, leaf_modules: Sequence[str] = (), *, training: bool = True) -> None:
    """Raise Untraceable where a module or a parameter has a hook on its gradients, which matter in training alone.

    leaf_modules: names of modules that are not traced, whose hooks are called when they run.
    """
    if not training:
        return
    for name, module in model.named_modules():
        in_leaf = any(leaf in (name, MODEL, STEP) or is_inside(name, leaf) for leaf in leaf_modules)
        if (module._backward_hooks or module._backward_pre_hooks) and not in_leaf:
            raise Untraceable(
                f"the module {name or 'itself'} has a backward hook", rewrite=FIX, modules=[name] if name else ()
            )
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise Untraceable(f"the parameter {name} has a hook on its gradient", rewrite=FIX)


def refuse_functions(result: Tensor, model: nn.Module, rerun: Callable[[], object]) -> None:
    """Raise Untraceable where a result was computed by an autograd function, one of torch's own included.

    rerun: computes the result another time, to find out which modules of `model` do it.
    """
    function = _find_custom_function(result)
    if function is None:
        return
    with _ModuleLocator(model) as locator:
        rerun()
    raise Untraceable(
        f"the model computes gradients with {function.__name__}.backward{_describe_definition(function)}",
        rewrite=FIX,
        modules=locator.modules,
    )


class _ModuleLocator:
    """While it is active, finds the innermost module that uses a custom autograd function, and those around it."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self.modules: list[str] = []

    def __enter__(self) -> "_ModuleLocator":
        self._handle = register_module_forward_hook(self._after)
        return self

    def __exit__(self, *ended: object) -> None:
        self._handle.remove()

    def _after(self, module: nn.Module, inputs: Any, output: Any) -> None:
        name = self._names.get(id(module), "")
        innermost = not self.modules and not _uses_custom_function(inputs)
        if (
            name
            and _uses_custom_function(output)
            and (innermost or any(is_inside(inner, name) for inner in self.modules))
        ):
            self.modules.append(name)


def _uses_custom_function(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) and _find_custom_function(leaf) is not None for leaf in iter_leaves(value))


def _find_custom_function(result: Tensor) -> Any:
    """Return an autograd function, other than of an operator, among those that computed a result, or None.

    One within the body of an operator, which a trace keeps whole, says so by an attribute `of_operator`.
    """
    pending, seen = list[Any]([result.grad_fn]), set[Any]()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        pending += [before for before, _ in node.next_functions]
        function = getattr(type(node), "_forward_cls", None)
        if function is not None and not _is_of_operator(function):
            return function
    return None


def _is_of_operator(function: Any) -> bool:
    return getattr(function, "of_operator", False) or f"{function.__module__}.".startswith(TRACED)


def _describe_definition(function: Callable[..., Any]) -> str:
    try:
        return f" at {_format_place(inspect.getsourcefile(function), inspect.getsourcelines(function)[1])}"
    except (OSError, TypeError):
        return ""


def _format_place(file: str | None, line: int | None) -> str:
    return f"{os.path.basename(file or '')}:{line}"


def is_outside(leaf: Tensor, known: Sequence[Tensor]) -> bool:
    """Whether a tensor is none of those that are known."""
    return not any(leaf is tensor for tensor in known)


def find_gradient_leaves(result: Tensor) -> list[Tensor]:
    """Return the tensors in whose `.grad` a backward pass from `result` would end."""
    if not result.requires_grad:
        return []
    if result.grad_fn is None:
        return [result]
    pending, seen, leaves = list[Any]([result.grad_fn]), set[Any](), list[Tensor]()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        pending += [before for before, _ in node.next_functions]
    return leaves
