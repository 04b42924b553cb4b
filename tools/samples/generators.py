"""What samples draw at random: it depends on the seed and on what is read alone, and nobody else's draws change."""

import hashlib
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")
_States = tuple[Any, Any, Tensor]  # of Python, numpy and torch


def seed_generators(*what: int) -> int:
    """Seed the generators of Python, numpy and torch by some numbers; return the seed."""
    digest = hashlib.blake2b(" ".join(map(str, what)).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little") >> 1
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    return seed


def iterate_seeded(items: Iterable[T], *what: int) -> Iterator[T]:
    """Iterate with generators of its own, which are seeded by some numbers; whoever takes the items has the others."""
    with keep_generators():
        seed_generators(*what)
        iterator, states = iter(items), _get_states()
    while True:
        with keep_generators():
            _set_states(states)
            try:
                item = next(iterator)
            except StopIteration:
                return
            states = _get_states()
        yield item


def _get_states() -> _States:
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


def _set_states(states: _States) -> None:
    python, array, tensor = states
    random.setstate(python)
    np.random.set_state(array)
    torch.default_generator.set_state(tensor)


@contextmanager
def keep_generators() -> Iterator[None]:
    """Leave the generators of Python, numpy and torch as they were."""
    states = _get_states()
    try:
        yield
    finally:
        _set_states(states)
