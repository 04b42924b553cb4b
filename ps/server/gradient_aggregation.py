"""`Gathering`: pushes on one version of a slice that wait for each other, to become one update."""

from collections import defaultdict
from dataclasses import dataclass, field

import msgspec
from torch import Tensor

from ..slices.sparse_rows import Rows, mean


class Pushed(msgspec.Struct, frozen=True, eq=False):
    """A push as it waits: whose it is, its number there, and its gradient, [n] or rows."""

    sender: str
    number: int
    step: int
    replica: int
    gradient: Tensor | Rows


@dataclass(eq=False)
class Gathering:
    """By version and replica; one that was started again takes the place of what it had pushed before.

    Pushes on a later version than the slice has come where a shard went back to what its disk had.
    """

    pushes: dict[int, dict[int, Pushed]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, base: int, replica: int, push: Pushed) -> None:
        """Keep a push."""
        self.pushes[base][replica] = push

    def last(self, sender: str) -> int:
        """The number of the sender's last push here, 0 for none."""
        numbers = [push.number for pushes in self.pushes.values() for push in pushes.values() if push.sender == sender]
        return max(numbers, default=0)

    def count(self, base: int) -> int:
        """How many pushes on a version are here."""
        return len(self.pushes.get(base, ()))

    def take(self, base: int, size: int) -> tuple[list[Pushed], Tensor | Rows]:
        """The pushes on a version in the order of their replicas, and their gradients' mean, added in that order.

        size: elements of the slice.
        """
        pushes = [push for _, push in sorted(self.pushes.pop(base).items())]
        return pushes, mean([push.gradient for push in pushes], size)
