"""Shows a trace where gradients flow and where they stop, in two cases in which torch.export gets it wrong.

`torch.utils.checkpoint.checkpoint` with `use_reentrant=True` computes under `torch.no_grad`, and the gradients by an
autograd function, which a trace leaves out; `torch.inference_mode` leaves no sign in a trace at all. While a model is
traced, the first is the plain computation and the second is `torch.no_grad`, whose gradients are the same.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointFunction


@contextlib.contextmanager
def show_gradient_modes() -> Iterator[None]:
    """Compute checkpointed code as if it were not, and in inference mode only stop gradients, while it is active."""
    with (
        _replace(CheckpointFunction, "apply", staticmethod(_compute_plainly)),
        _replace(torch.inference_mode, "__enter__", _stop_gradients),
        _replace(torch.inference_mode, "__exit__", _resume_gradients),
    ):
        yield


def _compute_plainly(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
    """Compute what `CheckpointFunction.apply` does; as there, a gradient flows only if an argument asks for one."""
    if any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
        return function(*args)
    with torch.no_grad():  # also to the parameters that `function` reads
        return function(*args)


def _stop_gradients(mode: torch.inference_mode) -> None:
    mode._inference_mode_context = torch.set_grad_enabled(not mode.mode)  # type: ignore[assignment]


def _resume_gradients(mode: torch.inference_mode, *raised: Any) -> None:
    mode._inference_mode_context.__exit__(*raised)


@contextlib.contextmanager
def _replace(owner: type, name: str, stand_in: object) -> Iterator[None]:
    own = vars(owner).get(name)
    setattr(owner, name, stand_in)
    try:
        yield
    finally:
        if own is None:  # inherited
            delattr(owner, name)
        else:
            setattr(owner, name, own)
