"""In which state a generator is whenever a model that is built without values would draw from it.

Nothing is drawn then, so a generator would always seem to be where it was. Here each draw that is put off moves it on a
little instead, to a state of its own: when such a state comes back, the model's code has put it back, and when an
unknown one comes, the model's code has seeded it. Repeating the draws, true states are put in the place of those.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch


class Unrecordable(Exception):  # noqa: N818 - it says why, and is always answered
    """A model whose building cannot be recorded and repeated."""


@dataclass(frozen=True)
class Drawing:
    """One draw: the generator's number, the draw's own number, and where that begins.

    seeded: the state in which the generator is then; follows: the draw after which it is in the state that this one
    begins with. Neither: it goes on where it was.
    """

    generator: int
    number: int
    seeded: bytes | None = None
    follows: int | None = None


class Draws:
    """Follows all generators while a model is recorded."""

    def __init__(self) -> None:
        self._generators: list[torch.Generator] = []
        self._first: list[bytes] = []  # states in which they were found
        self._expected: list[bytes] = []
        self._marks: dict[bytes, int] = {}  # states after draws -> the draw
        self._followed: set[int] = set()
        self._count = 0

    def before(self, generator: torch.Generator) -> Drawing:
        """Note from where a draw begins."""
        state = _state(generator)
        number, self._count = self._count, self._count + 1
        if generator not in self._generators:
            self._generators.append(generator)
            self._first.append(state)
            self._expected.append(b"")
        index = self._generators.index(generator)
        if state == self._expected[index]:
            return Drawing(index, number)
        if state in self._marks:
            self._followed.add(self._marks[state])
            return Drawing(index, number, follows=self._marks[state])
        if self._expected[index] and state != _state(torch.Generator().manual_seed(generator.initial_seed())):
            raise Unrecordable("it sets the state of a random generator that it has drawn from")
        return Drawing(index, number, seeded=state)

    def after(self, drawing: Drawing) -> None:
        """Move the generator on to a state of its own."""
        generator = self._generators[drawing.generator]
        torch.empty(1).uniform_(generator=generator)
        state = _state(generator)
        while state in self._marks:  # two draws from one state: that they are told apart, go on to where nobody was
            torch.empty(1).uniform_(generator=generator)
            state = _state(generator)
        self._expected[drawing.generator] = state
        self._marks[state] = drawing.number

    def put_back(self) -> None:
        """Leave the generators as they were found, but torch's own to whoever has forked it."""
        for generator, state in zip(self._generators, self._first, strict=True):
            if generator is not torch.default_generator:
                generator.set_state(_from_bytes(state))

    @property
    def followed(self) -> frozenset[int]:
        """Draws after which the generator's state was put back later."""
        return frozenset(self._followed)


class DrawsAgain:
    """True states of the generators while a recording is repeated. All draws are made from torch's own one.

    followed: the draws whose states are kept.
    """

    def __init__(self, followed: frozenset[int]) -> None:
        self._followed = followed
        self._now: dict[int, torch.Tensor] = {}  # by generator
        self._after: dict[int, torch.Tensor] = {}  # by draw
        self._at = -1  # the generator whose state torch's own is in

    @contextlib.contextmanager
    def drawing(self, draw: Drawing) -> Iterator[None]:
        """Torch's own generator is in the state that a draw begins with, and what it leaves is kept."""
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
