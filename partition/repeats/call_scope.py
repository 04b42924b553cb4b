"""`CallScope`: what a log notes of one call of a layer, and what it knows of its operators from a like call."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..trace.value_numbers import find_memory
from .known_result import KnownResult, find_known_result


class CallScope:
    """What happens within a call of a layer, or outside of all, where `layer` is "".

    described, line: of the call, see `LoggedCall`. entries: of operators, and calls of other layers. results: what
    operators gave, by the numbers of their entries. overwrites: whether an operator has written into what was there
    before, but for buffers of the layer.
    """

    def __init__(self, layer: str, described: Any = None, line: str = "") -> None:
        self.layer, self.described, self.line = layer, described, line
        self.entries: list[Any] = []
        self.results: dict[int, KnownResult] = {}
        self.overwrites = False
        self.operators = 0
        self.positions: dict[int, int] = {}  # of what the call gets, by id
        self.foreign: set[int] = set()  # memories that were there before
        self._expected: Sequence[Any] = ()
        self._known: Mapping[int, KnownResult] = {}

    def give(self, operands: Sequence[Tensor], buffers: Iterable[Tensor]) -> None:
        """Number what the call gets. buffers: of the layer, which it may overwrite."""
        self.positions = {id(tensor): i for i, tensor in enumerate(operands)}
        self.foreign = set(map(find_memory, operands)) - set(map(find_memory, buffers))

    def expect(self, entries: Sequence[Any], results: Mapping[int, KnownResult]) -> None:
        """Expect the operators of a call that got the like."""
        self._expected, self._known = entries, results

    def note(self, operator: Any) -> KnownResult | None:
        """Take note of an operator and what it gets. Return what it gives, where it and all before are as expected."""
        self.operators += 1
        number = len(self.entries)
        self.entries.append(operator)
        if number >= len(self._expected):
            return None
        if operator != self._expected[number]:
            self._expected = ()
            return None
        self.entries[number] = self._expected[number]  # the very same is faster to compare later
        known = self._known.get(number)
        if known is not None:
            self.results[number] = known
        return known

    def note_call(self, call: Any) -> None:
        """Take note of a call of another layer, after which nothing is expected."""
        self.entries.append(call)
        self._expected = ()

    def learn(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Take note of what the last operator gave."""
        known = find_known_result(func, args, kwargs, result) if self.layer else None
        if known is not None:
            self.results[len(self.entries) - 1] = known
