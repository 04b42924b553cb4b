"""Tracks the states of random generators while a model that draws from them is built without values.

Nothing is drawn then, so a generator would always seem to be where it was. Instead, each deferred draw advances it a
little, to a state that marks this draw. When such a state comes back, the model's code has put it back; when an unknown
one comes, the model's code has seeded the generator. When the draws are replayed, true states take the place of marks.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch


class Unrecordable(Exception):  # noqa: N818 - it is caught always, and says why
    """A model whose building cannot be recorded and repeated."""


@dataclass(frozen=True)
class DeferredDraw:
    """One draw from a generator, both by number, and the state that it begins with.

    seeded: that state, where the model's code has seeded the generator. follows: the draw that left that state, where
    the model's code has put it back. If neither is given, the draw begins where the last one ended.
    """

    generator: int
    number: int
    seeded: bytes | None = None
    follows: int | None = None


class GeneratorTracker:
    """Tracks all generators while a model is recorded."""

    def __init__(self) -> None:
        self._generators: list[torch.Generator] = []
        self._first: list[bytes] = []  # states in which they were found
        self._expected: list[bytes] = []
        self._marks: dict[bytes, int] = {}  # states after draws -> the draw
        self._followed: set[int] = set()
        self._count = 0

    def begin(self, generator: torch.Generator) -> DeferredDraw:
        """Return a draw that is about to begin."""
        state = _state(generator)
        number, self._count = self._count, self._count + 1
        if generator not in self._generators:
            self._generators.append(generator)
            self._first.append(state)
            self._expected.append(b"")
        index = self._generators.index(generator)
        if state == self._expected[index]:
            return DeferredDraw(index, number)
        if state in self._marks:
            self._followed.add(self._marks[state])
            return DeferredDraw(index, number, follows=self._marks[state])
        if self._expected[index] and state != _state(torch.Generator().manual_seed(generator.initial_seed())):
            raise Unrecordable("it sets the state of a random generator that it has drawn from")
        return DeferredDraw(index, number, seeded=state)

    def end(self, draw: DeferredDraw) -> None:
        """Advance the generator to a state that marks this draw."""
        generator = self._generators[draw.generator]
        torch.empty(1).uniform_(generator=generator)
        state = _state(generator)
        while state in self._marks:  # two draws from one state would have one mark: advance until the state is new
            torch.empty(1).uniform_(generator=generator)
            state = _state(generator)
        self._expected[draw.generator] = state
        self._marks[state] = draw.number

    def restore(self) -> None:
        """Restore the states that the generators were found in; torch's own is left to whoever has forked it."""
        for generator, state in zip(self._generators, self._first, strict=True):
            if generator is not torch.default_generator:
                generator.set_state(_from_bytes(state))

    @property
    def followed(self) -> frozenset[int]:
        """Draws after which the generator's state was put back later."""
        return frozenset(self._followed)


class GeneratorReplay:
    """True states of the generators while a recording is replayed. All draws are made from torch's own generator.

    followed: the draws whose final states are kept.
    """

    def __init__(self, followed: frozenset[int]) -> None:
        self._followed = followed
        self._now: dict[int, torch.Tensor] = {}  # by generator
        self._after: dict[int, torch.Tensor] = {}  # by draw
        self._at = -1  # the generator whose state torch's own is in

    @contextlib.contextmanager
    def replay(self, draw: DeferredDraw) -> Iterator[None]:
        """Put torch's own generator into the state that a draw begins with, and keep the state that the draw leaves."""
        own = torch.default_generator
        if draw.seeded is not None:
            own.set_state(_from_bytes(draw.seeded))
        elif draw.follows is not None:
            own.set_state(self._after[draw.follows])
        elif self._at != draw.generator:
            own.set_state(self._now[draw.generator])
        yield
        self._at = draw.generator
        self._now[draw.generator] = own.get_state()
        if draw.number in self._followed:
            self._after[draw.number] = self._now[draw.generator]


def _state(generator: torch.Generator) -> bytes:
    return generator.get_state().numpy().tobytes()


def _from_bytes(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
