"""How the code of a step is run while it is traced: what a trace cannot see is put into words that it can."""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.rnn import RNNBase
from torch.utils._python_dispatch import _disable_current_modes

from ...errors import BadInput
from ..ir.autocast import autocast_context
from ..operators.step_module import StepModule
from ..trace.dynamic_sizes import assume_generic_sizes
from ..trace.global_caches import keep_global_caches
from ..trace.gradient_modes import show_gradient_modes
from ..trace.grouped_products import GROUPED_PRODUCTS
from ..trace.known_conditions import KnownConditions
from ..trace.recurrent_stand_ins import RECURRENT_NETS
from ..trace.stand_ins import DETACHED_DATA, SIZES_IN_TENSORS, StandIns
from ..trace.suspended_trace import say_whether_exporting


def refuse_scripted_modules(model: nn.Module) -> None:
    """Raise BadInput where a module is of TorchScript, whose code nobody can see any more."""
    scripted = [name for name, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)]
    if scripted:
        which = f"the module {scripted[0]}" if scripted[0] else "the model"
        raise BadInput(
            "E320",
            f"{which} was made by torch.jit, which keeps nothing of how it was written",
            fix="give the module that it was made of; or train it uncut, data parallel only, with --machines 1",
        )


@contextlib.contextmanager
def run_as_traced(step: StepModule, autocast: str) -> Iterator[None]:
    """Run the code of a step as it is to be traced."""
    with (
        keep_global_caches([*step.modules(), getattr(step.criterion, "function", None)]),
        show_gradient_modes(),
        StandIns(DETACHED_DATA, SIZES_IN_TENSORS, RECURRENT_NETS, GROUPED_PRODUCTS, KnownConditions().stand_ins),
        torch.compiler.set_stance("force_eager"),
        say_whether_exporting(True),
        _unchecked_distributions(),
        _moves_to_the_same_place(),
        assume_generic_sizes(),
        autocast_context(autocast, cached=False),
        keep_quiet(),
    ):
        yield


@contextlib.contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Let distributions trust their parameters: their checks are branches on values, which only ever raise."""
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


@contextlib.contextmanager
def _moves_to_the_same_place() -> Iterator[None]:
    """Let modules be cast to what they are and moved to where they are, as by `self.part.to(x.dtype)` in forward.

    That changes nothing, unless a module within overrides torch's `_apply`. But torch would exchange tensors without
    values for others, which it then refuses, or which have no gradient in the trace.
    """
    move = nn.Module._apply

    def move_what_changes(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        tensors = [*module.parameters(recurse), *module.buffers(recurse)]
        plain = all(type(one)._apply in (move_what_changes, RNNBase._apply) for one in module.modules())
        if plain and all(_is_same_after(fn, tensor) for tensor in tensors):
            return module
        moved: nn.Module = move(module, fn, recurse)  # type: ignore[no-untyped-call]
        return moved

    nn.Module._apply = move_what_changes  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._apply = move  # type: ignore[method-assign]


def _is_same_after(fn: Callable[[Tensor], Tensor], tensor: Tensor) -> bool:
    """Whether a conversion leaves a tensor as it is, found out with a small one of its kind."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        small = torch.empty([2] * tensor.dim(), dtype=tensor.dtype)
        try:
            return tensor.is_contiguous() and fn(small) is small and not small._version
        except Exception:  # it is no place of this machine, which the conversion itself then says
            return False


@contextlib.contextmanager
def keep_quiet() -> Iterator[None]:
    """Silence torch's messages about the model; what matters becomes an error of ours."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.disabled
    log.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = before
