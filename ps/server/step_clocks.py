"""`Clocks`: how many steps each replica has pushed to a slice, and how far apart they were."""

from collections.abc import Mapping


class Clocks:
    """Of the replicas that train. gap: the most that one was ahead of the slowest when it computed what it pushed."""

    def __init__(self, replicas: int, steps: Mapping[int, int] | None = None) -> None:
        """steps: as a file has them, of the replicas that train then."""
        self._steps = dict(steps) if steps is not None else dict.fromkeys(range(replicas), 0)
        self.gap = 0

    @property
    def steps(self) -> dict[int, int]:
        """That each replica has taken."""
        return dict(self._steps)

    @property
    def slowest(self) -> int | None:
        """Steps of the slowest; None where all have left."""
        return min(self._steps.values(), default=None)

    @property
    def replicas(self) -> int:
        """How many train."""
        return len(self._steps)

    def joins(self, replica: int, step: int) -> int:
        """A replica wants to take a step, or one after it; the one that it takes.

        It goes on after those that it has pushed; one that was not there begins with that of the slowest.
        """
        at = max(step, self._steps.get(replica, self.slowest or 0))
        self._steps[replica] = at
        return at

    def joined(self, replica: int, step: int) -> None:
        """A replica is about to take a step, and took all before it."""
        self._steps[replica] = step

    def pushed(self, replica: int, step: int) -> None:
        """A replica has pushed the gradient of a step (from 0). One that was not there has joined."""
        self._steps[replica] = max(step, self._steps.get(replica, 0))
        self.gap = max(self.gap, step - min(self._steps.values()))
        self._steps[replica] = max(step + 1, self._steps[replica])

    def left(self, replica: int) -> None:
        """A replica takes no more steps."""
        self._steps.pop(replica, None)

    def __repr__(self) -> str:
        return f"Clocks({self._steps}, gap={self.gap})"
