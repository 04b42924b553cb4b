"""Stale synchronous parallel: a replica waits while it is more than `staleness` steps ahead of the slowest.

Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013.
"""

from typing import Any, ClassVar

from ..client.client import Client
from .method import Method
from ..optimizers.registry import AnyRule
from .training_loop import Share


class SSP(Method, frozen=True, tag="ssp"):
    """staleness: steps that a replica may be ahead of the slowest; with 0 all take their steps together."""

    leased: ClassVar[bool] = True
    staleness: int = 3

    def __post_init__(self) -> None:
        self.demand_count("staleness", 0)

    def local_rate(self, rule: AnyRule) -> float:
        """The worker takes the step too, where it can."""
        return rule.local_rate

    def enter(self, client: Client, step: int) -> int:
        """Where others are by now, who would have to wait else."""
        return client.join(step)

    def train(self, share: Share[Any]) -> None:
        """Fetch once the slowest is near enough, compute, push."""
        client, worker = share.client, share.worker
        gradient = share.gradient.zero()
        client.join(share.first)
        for step in share.steps():
            client.fetch(slowest=max(0, step - self.staleness), changes=share.keeps(step))
            client.wait()
            share.compute(step)
            if client.local_rate > 0:
                gradient.descend(worker.values, client.local_rate)
            client.push(gradient, step)
            gradient.zero()
            share.done(step)
        client.leave()
