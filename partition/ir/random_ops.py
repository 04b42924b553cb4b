"""Operators that draw random numbers: which do, and how to let one draw from a given state of torch's generator."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from .arguments import overload

T = TypeVar("T")

GENERATOR_BYTES = torch.Generator().get_state().numel()
# How many numbers these draw depends on their input, so that a rehearsal on other values would not tell.
DRAWS_BY_VALUE = ("rrelu", "rrelu_with_noise", "poisson", "binomial", "_standard_gamma", "_sample_dirichlet")


def noise_name(op: str) -> str:
    """The tensor that holds what an operator draws, or the state of the generator from which it draws."""
    return f"{op}.noise"


def draws(target: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a call may draw random numbers."""
    if torch.Tag.nondeterministic_seeded not in overload(target).tags:
        return False
    if any(arguments.get(flag) is False for flag in ("train", "training", "draws")):
        return False
    return arguments.get("dropout_p") != 0.0 and arguments.get("dropout") != 0.0


def drawing(state: Tensor, work: Callable[[], T]) -> tuple[T, Tensor]:
    """Run `work` while torch's generator is in `state`; the result, and the state of the generator after it.

    There is one such generator a process: threads have to take turns.
    """
    before = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        return work(), torch.get_rng_state()
    finally:
        torch.set_rng_state(before)
