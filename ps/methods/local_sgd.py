"""Local SGD: in each round replicas take steps of their own; then what they did, on the mean, is a step of the shards.

Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019. averaging.py and diloco.py say which step that is.
"""

from typing import Any

import torch

from .method import Method, Serving
from ..optimizers.optimizer import Update
from ..optimizers.registry import AnyRule
from .training_loop import Share


class LocalSGD(Method, frozen=True):
    """Its rounds.

    every: steps of a round. The user's rule takes them, with a state that each replica keeps to itself.
    overlap: go on while the shards take their step, which a round begins with otherwise: it is there a round later, and
    what was done meanwhile is done on top of it (Kale et al., "Eager Updates for Overlapped Communication and
    Computation in DiLoCo", 2025).
    """

    every: int = 20
    overlap: bool = False

    def __post_init__(self) -> None:
        self.demand_count("every", 1)

    def outer(self) -> AnyRule:
        """The rule of the shards' step, whose gradient is what a round took away from the parameters, on the mean."""
        raise NotImplementedError

    def serving(self, rule: AnyRule, replicas: int) -> Serving:
        """One step for the pushes of all replicas."""
        return Serving(self.outer(), replicas, gather=replicas)

    @property
    def period(self) -> int:
        """A round."""
        return self.every

    def updates(self, steps: int, replicas: int) -> int:
        """One a round."""
        return steps // self.every

    def check(self, rule: AnyRule, replicas: int, steps: int) -> None:
        """UsageError where the rule is about the delay of pushes."""
        self.demand_undelayed(rule)

    def train(self, share: Share[Any]) -> None:
        """Rounds of steps. A replica that was started again begins one with the shards' values and a new state."""
        client, rule = share.client, share.rule
        values, gradient = share.worker.values, share.worker.gradients
        client.fetch()
        client.wait()
        base = values.clone()  # values - base is what this round has done so far
        state = rule.state(values)
        for step in share.steps():
            gradient.zero_()
            share.compute(step)
            rule.apply(values, gradient, state, Update(step - share.first + 1, replica=share.replica))
            if (step + 1) % self.every == 0 or share.last:
                self._end_round(share, base, step)
            share.done(step)
        client.leave()

    def _end_round(self, share: Share[Any], base: torch.Tensor, step: int) -> None:
        """Push what the round did, which lasted to `step`, and begin the next; the gradients are room to work in."""
        client, values, room = share.client, share.worker.values, share.worker.gradients
        if client.fetching:  # the shards' step after the round before
            done = torch.sub(values, base, out=room)
            client.wait()
            base.copy_(values)
            values.add_(done)
        done = torch.sub(base, values, out=room)
        base.copy_(values)
        # The shards' version is the number of the round: all replicas push on it, so nobody is further ahead.
        number = client.version
        if self.overlap and not share.last:
            client.push(done, step, base=number)
            client.fetch(at_least=number + 1)
            return
        client.exchange(done, step, base=number, at_least=number + 1)
        client.wait()
        base.copy_(values)
