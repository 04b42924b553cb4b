"""`StepClocks`: how many steps each replica has pushed to a slice, and how far apart the replicas were."""

from collections.abc import Mapping


class StepClocks:
    """The clocks of the replicas that train (Ho et al., SSP, NIPS 2013).

    gap: the most steps that a replica was ahead of the slowest when it computed what it pushed.
    """

    def __init__(self, replicas: int, steps: Mapping[int, int] | None = None) -> None:
        """steps: by replica that trains, as read from a journal; by default `replicas` replicas at step 0."""
        self._steps = dict(steps) if steps is not None else dict.fromkeys(range(replicas), 0)
        self.gap = 0

    @property
    def steps(self) -> dict[int, int]:
        """The steps that each replica has taken."""
        return dict(self._steps)

    @property
    def slowest(self) -> int | None:
        """The steps that the slowest replica has taken; None if all have left."""
        return min(self._steps.values(), default=None)

    @property
    def replicas(self) -> int:
        """The number of replicas that train."""
        return len(self._steps)

    def assign_step(self, replica: int, step: int) -> int:
        """Let a replica join that wants to take `step` or a later one. Return the step that it takes.

        It continues after the steps that it has pushed; a replica that was not there begins where the slowest is.
        """
        assigned = max(step, self._steps.get(replica, self.slowest or 0))
        self._steps[replica] = assigned
        return assigned

    def set_step(self, replica: int, step: int) -> None:
        """Record that a replica is about to take this step and has taken all before it."""
        self._steps[replica] = step

    def record_push(self, replica: int, step: int) -> None:
        """Record that a replica has pushed the gradient of a step (from 0). A replica that was not there has joined."""
        self._steps[replica] = max(step, self._steps.get(replica, 0))
        self.gap = max(self.gap, step - min(self._steps.values()))
        self._steps[replica] = max(step + 1, self._steps[replica])

    def remove(self, replica: int) -> None:
        """Record that a replica takes no more steps."""
        self._steps.pop(replica, None)

    def __repr__(self) -> str:
        return f"StepClocks({self._steps}, gap={self.gap})"
