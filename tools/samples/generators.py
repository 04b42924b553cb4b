"""What samples draw at random: it depends on the seed and on what is read alone, and nobody else's draws change."""

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")
_States = tuple[Any, Any, Tensor]  # of Python, numpy and torch


class _Generator(NamedTuple):
    seed: Callable[[int], object]
    draw: Callable[[], float]


PYTHON = _Generator(random.seed, random.random)
NUMPY = _Generator(lambda seed: np.random.seed(seed & 0xFFFFFFFF), np.random.random)


def seed_generators(*what: int) -> None:
    """Seed the generators of Python, numpy and torch by some numbers."""
    _seed(_make_seed(what), (PYTHON, NUMPY))


def _make_seed(what: Iterable[int]) -> int:
    digest = hashlib.blake2b(" ".join(map(str, what)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _seed(seed: int, others: Iterable[_Generator]) -> None:
    """Seed the generator of torch, and others."""
    torch.default_generator.manual_seed(seed)
    for one in others:
        one.seed(seed)


class SeededReads:
    """Reads items with generators that are seeded for each of them.

    To seed those of Python and numpy takes longer than to read a small item. So those from which no item of the first
    batch draws are seeded no more; where a later one does, its batch is read again.
    """

    def __init__(self) -> None:
        self._drawn: list[_Generator] | None = None  # from these items were seen to draw; None before the first batch

    def read(self, read: Callable[[int], T], whats: Sequence[tuple[int, ...]]) -> list[T]:
        """Return what `read` gives for each place in `whats`, the numbers by which generators are seeded for an item.

        There must be at least one.
        """
        seeds = [_make_seed(what) for what in whats]  # all at once: what runs between items that wait is cold
        if self._drawn is None:
            self._drawn, items = self._read_first(read, seeds)
            return items
        while True:
            others = [one for one in (PYTHON, NUMPY) if one not in self._drawn]
            for one in others:
                one.seed(seeds[0])
            try:
                items = [_read_item(read, place, seed, self._drawn) for place, seed in enumerate(seeds)]
            except Exception:
                if not self._note_draws(others, seeds[0]):
                    raise
            else:
                if not self._note_draws(others, seeds[0]):
                    return items

    def _read_first(self, read: Callable[[int], T], seeds: Sequence[int]) -> tuple[list[_Generator], list[T]]:
        """Return the generators from which items draw, and the items."""
        drawn, items = list[_Generator](), list[T]()
        for place, seed in enumerate(seeds):
            items.append(_read_item(read, place, seed, (PYTHON, NUMPY)))
            drawn += [one for one in (PYTHON, NUMPY) if one not in drawn and _has_moved(one, seed)]
        return drawn, items

    def _note_draws(self, others: Iterable[_Generator], seed: int) -> bool:
        """Return whether anybody has drawn from generators since all were seeded by the same, and take note of it."""
        drawn = [one for one in others if _has_moved(one, seed)]
        self._drawn = [*(self._drawn or ()), *drawn]
        return bool(drawn)


def _read_item(read: Callable[[int], T], place: int, seed: int, others: Iterable[_Generator]) -> T:
    _seed(seed, others)
    return read(place)


def _has_moved(generator: _Generator, seed: int) -> bool:
    """Return whether anybody has drawn since a generator was seeded: its next number is not the first."""
    found = generator.draw()
    generator.seed(seed)
    return found != generator.draw()


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
