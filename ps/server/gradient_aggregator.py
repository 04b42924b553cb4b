"""`GradientAggregator`: pushes on one version of a slice that wait for each other; their mean makes one update."""

from dataclasses import dataclass, field

import msgspec
from torch import Tensor

from ..slices.sparse_rows import SparseRows, mean_gradient


class PendingPush(msgspec.Struct, frozen=True, eq=False):
    """A push at a shard: its sender, its sequence number, and its gradient, [n] or rows.

    factors: of the learning rate, one for all groups of parameters or one each; none where a schedule says it.
    """

    sender: str
    number: int
    step: int
    replica: int
    gradient: Tensor | SparseRows
    factors: tuple[float, ...] = ()


@dataclass(eq=False)
class GradientAggregator:
    """The pushes by replica that wait for others on the slice's present version.

    A push of a restarted replica replaces its earlier one.
    """

    pushes: dict[int, PendingPush] = field(default_factory=dict)

    def add(self, push: PendingPush) -> None:
        """Keep a push on the present version."""
        self.pushes[push.replica] = push

    def last_number(self, sender: str) -> int:
        """Return the number of the sender's waiting push, 0 if it has none."""
        return max((push.number for push in self.pushes.values() if push.sender == sender), default=0)

    def take(self, size: int) -> tuple[list[PendingPush], Tensor | SparseRows]:
        """Remove the pushes. Return them by replica, and their mean gradient [size].

        Gradients are added in the order of the replicas, so the mean has the same bits whoever came first.
        """
        pushes = [push for _, push in sorted(self.pushes.items())]
        self.pushes.clear()
        return pushes, mean_gradient([push.gradient for push in pushes], size)
