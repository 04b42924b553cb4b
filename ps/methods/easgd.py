"""Elastic averaging SGD: replicas that train on their own, each tied by a spring to a centre on the shards.

Zhang, Choromanska, LeCun, "Deep Learning with Elastic Averaging SGD", NIPS 2015; `train` is its algorithm 1.
"""

from typing import Any, ClassVar

import torch

from ..optimizers.standard import Add
from .method import Method, Serving
from ..optimizers.optimizer import Update
from ..optimizers.registry import AnyRule
from .training_loop import Share


class EASGD(Method, frozen=True, tag="easgd"):
    """Local steps by the rule in each replica, which every so often pulls at a centre and is pulled by it.

    every: steps between two pulls, tau of the paper. alpha: how far a replica goes towards the centre in one, and the
    centre towards it; 0 for the paper's 0.9 / replicas.

    The centre is what is tested at the end and saved. Parameters and the rule's state are each replica's own: one that
    was started again begins with a new state, at the centre.
    """

    leased: ClassVar[bool] = True
    every: int = 10
    alpha: float = 0.0

    def __post_init__(self) -> None:
        self.demand_count("every", 1)
        self.demand_number("alpha", "from 0 to 1", lambda x: 0 <= x <= 1, proper=0.1)

    def serving(self, rule: AnyRule, replicas: int) -> Serving:
        """Pulls are added to the centre; the user's rule takes the replicas' steps."""
        return Serving(Add(), replicas)

    @property
    def period(self) -> int:
        """From pull to pull."""
        return self.every

    def updates(self, steps: int, replicas: int) -> int:
        """One a pull."""
        return replicas * (steps // self.every)

    def check(self, rule: AnyRule, replicas: int, steps: int) -> None:
        """UsageError where the rule is about the delay of pushes."""
        self.demand_undelayed(rule)

    def train(self, share: Share[Any]) -> None:
        """Steps, and pulls whose fetch overlaps a step; the last one so that the centre learns of the last steps."""
        client, rule = share.client, share.rule
        values, gradient = share.worker.values, share.worker.gradients
        client.fetch()
        client.wait()
        state, done = rule.state(values), share.first
        for step in share.steps():
            pulls = step % self.every == 0 and step > share.first
            gradient.zero_()
            if pulls:
                client.fetch()
            share.compute(step)
            if pulls:
                self._pull(share, done)
            rule.apply(values, gradient, state, Update(step - share.first + 1, replica=share.replica))
            share.done(step)
            done = step + 1
        if done > share.first:
            client.fetch()
            self._pull(share, done)
        client.leave()

    def _pull(self, share: Share[Any], done: int) -> None:
        """a = alpha (values - centre); values -= a; centre += a, which is what the centre gets of the `done` steps."""
        own = share.worker.values.clone()
        share.client.wait()  # the centre takes their place
        pull = torch.sub(own, share.worker.values).mul_(self.alpha or 0.9 / share.replicas)
        share.client.push(pull, done - 1, given=True)
        torch.sub(own, pull, out=share.worker.values)
