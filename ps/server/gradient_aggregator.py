"""`GradientAggregator`: pushes on one version of a slice that wait for each other; their mean makes one update."""

from collections import defaultdict
from dataclasses import dataclass, field

import msgspec
from torch import Tensor

from ..slices.sparse_rows import SparseRows, mean_gradient


class PendingPush(msgspec.Struct, frozen=True, eq=False):
    """A push at a shard: its sender, its sequence number, and its gradient, [n] or rows."""

    sender: str
    number: int
    step: int
    replica: int
    gradient: Tensor | SparseRows


@dataclass(eq=False)
class GradientAggregator:
    """The waiting pushes of a slice by version and replica.

    A push of a restarted replica replaces its earlier one. Pushes on a later version than the slice's can arrive after
    a shard was rolled back to its journal; they wait for that version.
    """

    pushes: dict[int, dict[int, PendingPush]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, base: int, replica: int, push: PendingPush) -> None:
        """Keep a push on version `base`."""
        self.pushes[base][replica] = push

    def last_number(self, sender: str) -> int:
        """Return the number of the sender's last waiting push, 0 if it has none."""
        numbers = [push.number for pushes in self.pushes.values() for push in pushes.values() if push.sender == sender]
        return max(numbers, default=0)

    def count(self, base: int) -> int:
        """Return how many pushes on version `base` wait."""
        return len(self.pushes.get(base, ()))

    def take(self, base: int, size: int) -> tuple[list[PendingPush], Tensor | SparseRows]:
        """Remove the pushes on version `base`. Return them by replica, and their mean gradient [size].

        Gradients are added in the order of the replicas, so the mean has the same bits whoever came first.
        """
        pushes = [push for _, push in sorted(self.pushes.pop(base).items())]
        return pushes, mean_gradient([push.gradient for push in pushes], size)
