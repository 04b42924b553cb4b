"""`Axis`: an index range that tensors share, found by union-find with splitting.

Every dimension of every tensor is a sequence of axes, outermost first. An operator equates axes of its operands; where
an axis of size 64 meets axes of (4, 16), it splits in two. Axes of size one do not exist: such dimensions are empty
sequences.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """An index range. name: where it was first seen, as "tensor.dimension"; size: its length."""

    name: str
    size: int


class Axes:
    """All axes of a graph. An axis is an integer; it stands for itself, for another one, or for a sequence of parts."""

    def __init__(self) -> None:
        self._axes: list[Axis] = []
        self._stands_for: list[tuple[int, ...]] = []

    def new(self, name: str, size: int) -> tuple[int, ...]:
        """Add an axis and return it as a sequence, which is empty for size one."""
        if size == 1:
            return ()
        self._axes.append(Axis(name, size))
        self._stands_for.append(())
        return (len(self._axes) - 1,)

    def __getitem__(self, axis: int) -> Axis:
        return self._axes[axis]

    def resolve(self, sequence: Sequence[int]) -> tuple[int, ...]:
        """Return the sequence in axes that stand for themselves."""
        for axis in sequence:
            if self._stands_for[axis]:
                break
        else:  # as nearly always
            return tuple(sequence)
        out: list[int] = []
        for axis in sequence:
            meaning = self._stands_for[axis]
            if meaning:
                meaning = self._stands_for[axis] = self.resolve(meaning)  # the next time it is one step
            out.extend(meaning or (axis,))
        return tuple(out)

    def sizes(self, sequence: Sequence[int]) -> tuple[int, ...]:
        """Return the sizes of the resolved sequence."""
        return tuple(self._axes[axis].size for axis in self.resolve(sequence))

    def equate(self, a: Sequence[int], b: Sequence[int]) -> bool:
        """Make two sequences mean the same index range; return False, and change nothing, where sizes do not divide."""
        a, b = self.resolve(a), self.resolve(b)
        if a == b:
            return True
        if len(a) == len(b) == 1 and self._axes[a[0]].size == self._axes[b[0]].size:
            self._unite(a[0], b[0])
            return True
        if not _have_common_refinement(self.sizes(a), self.sizes(b)):
            return False
        left, right = deque(a), deque(b)
        while left and right:
            x, y = self._head(left), self._head(right)
            size_x, size_y = self._axes[x].size, self._axes[y].size
            if size_x > size_y:
                self._split(x, size_y)
            elif size_y > size_x:
                self._split(y, size_x)
            else:
                left.popleft(), right.popleft()
                self._unite(x, y)
        return True

    def _head(self, pending: deque[int]) -> int:
        """Return the first axis of `pending` that stands for itself; `pending` is resolved that far."""
        while meaning := self._stands_for[pending[0]]:
            pending.popleft()
            pending.extendleft(reversed(meaning))
        return pending[0]

    def _split(self, axis: int, outer: int) -> None:
        whole = self._axes[axis]
        parts = (*self.new(f"{whole.name}:0", outer), *self.new(f"{whole.name}:1", whole.size // outer))
        self._stands_for[axis] = parts

    def _unite(self, a: int, b: int) -> None:
        if a != b:
            older, newer = min(a, b), max(a, b)
            self._stands_for[newer] = (older,)


def _have_common_refinement(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two sequences of sizes have a common refinement, outermost first."""
    left, right = deque(a), deque(b)
    while left and right:
        x, y = left.popleft(), right.popleft()
        if max(x, y) % min(x, y):
            return False
        if x > y:
            left.appendleft(x // y)
        elif y > x:
            right.appendleft(y // x)
    return not left and not right
