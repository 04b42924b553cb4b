"""`Gathering`: pushes on one version of a slice that wait for each other, to become one update."""

from dataclasses import dataclass, field

import msgspec
from torch import Tensor


class Pushed(msgspec.Struct, frozen=True, eq=False):
    """A push as it waits: whose it is, its number there, and its gradient [n]."""

    sender: str
    number: int
    step: int
    gradient: Tensor


@dataclass(eq=False)
class Gathering:
    """By replica; one that was started again takes the place of what it had pushed before."""

    pushes: dict[int, Pushed] = field(default_factory=dict)

    def add(self, replica: int, push: Pushed) -> None:
        """Keep a push."""
        self.pushes[replica] = push

    def has(self, sender: str, number: int) -> bool:
        """Whether this push is here."""
        return any(push.sender == sender and push.number == number for push in self.pushes.values())

    def take(self) -> tuple[list[Pushed], Tensor]:
        """All pushes, in the order of their replicas, and the mean of their gradients, added up in that order."""
        pushes = [push for _, push in sorted(self.pushes.items())]
        self.pushes = {}
        total = pushes[0].gradient.clone()
        for push in pushes[1:]:
            total.add_(push.gradient)
        return pushes, total.div_(len(pushes)) if len(pushes) > 1 else total

    def __len__(self) -> int:
        return len(self.pushes)
