"""Operators that draw random numbers: which do, and how one draws from a given state of torch's generator."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from .arguments import find_overload

T = TypeVar("T")

RANDOM_OPERAND = "@random"  # the argument under which an operator reads its mask, or its generator's state
GENERATOR_BYTES = torch.Generator().get_state().numel()
# How many numbers these operators draw depends on their input, so that a run on other values would not tell.
DRAWS_BY_VALUE = ("rrelu", "rrelu_with_noise", "poisson", "binomial", "_standard_gamma", "_sample_dirichlet")


def random_tensor_name(op: str) -> str:
    """Return the name of an operator's dropout mask, or of the state of the generator from which it draws."""
    return f"{op}.random"


def is_random(target: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a call may draw random numbers."""
    if torch.Tag.nondeterministic_seeded not in find_overload(target).tags:
        return False
    if any(arguments.get(flag) is False for flag in ("train", "training", "draws")):
        return False
    return arguments.get("dropout_p") != 0.0 and arguments.get("dropout") != 0.0


def run_with_generator(state: Tensor, work: Callable[[], T]) -> tuple[T, Tensor]:
    """Run `work` while torch's generator is in `state`; return the result and the generator's state after it.

    A process has one such generator: threads have to take turns.
    """
    before = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        return work(), torch.get_rng_state()
    finally:
        torch.set_rng_state(before)
