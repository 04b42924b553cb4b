"""Hogwild: the replicas of one host update the same memory, without a lock.

Niu et al., "Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent", NIPS 2011. The parameters of
a machine and what the rule remembers are there once, for the workers of all replicas: nothing is fetched or pushed. Of
tables a step changes the rows that it has touched. An update may undo part of another, and a gradient may be computed
on parameters that change meanwhile: that is the method.
"""

from typing import Any, ClassVar

from ...errors import Diverged, UsageError
from ..slices.slice_state import finite
from .method import Method
from ..optimizers.registry import AnyRule
from .training_loop import Share
from ..server.shared_parameters import Shared


class Hogwild(Method, frozen=True, tag="hogwild"):
    """One shard holds all that a machine has, since that is one piece of memory."""

    whole: ClassVar[bool] = True
    pushes: ClassVar[bool] = False

    def check(self, rule: AnyRule, replicas: int, steps: int) -> None:
        """UsageError where the rule is about pushes."""
        self.demand_undelayed(rule)

    def train(self, share: Share[Any]) -> None:
        """Compute on what is there, and change it. A machine that trains nothing has nothing to share."""
        gradient = share.gradient
        shared = _shared(share) if share.worker.values.numel() else None
        for step in share.steps():
            seen = 0 if shared is None else shared.updates
            gradient.zero()
            share.compute(step)
            if shared is not None:
                shared.apply(share.rule, gradient, seen)
            share.done(step)
        if not finite(share.worker.values):
            facts = f"the parameters of {share.client.name} are not finite after its last step"
            raise Diverged("E704", facts, fix=f"lower the rate: --lr {share.rule.lr / 10:g}")


def _shared(share: Share[Any]) -> Shared:
    """The memory of this worker's machine; its model computes on that from now on. UsageError on another host."""
    client = share.client
    told = client.ask("share", "shared", {"replica": share.replica})
    try:
        shared = Shared(told, replica=share.replica)
    except OSError as error:
        facts = f"hogwild needs all replicas on one host; {client.name} does not find the parameters' memory: {error}"
        raise UsageError("E268", facts, fix="--method downpour, or all processes on one host") from error
    client.values = shared.values
    share.worker.move(shared.values)
    return shared
