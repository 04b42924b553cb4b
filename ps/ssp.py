"""Stale synchronous parallel: a replica waits while it is more than `staleness` steps ahead of the slowest.

Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013.
"""

from typing import Any

from .method import Method
from .rules import AnyRule
from .share import Share


class SSP(Method, frozen=True, tag="ssp"):
    """staleness: steps that a replica may be ahead of the slowest; with 0 all take their steps together."""

    staleness: int = 3

    def __post_init__(self) -> None:
        self.demand_count("staleness", 0)

    def local_rate(self, rule: AnyRule) -> float:
        """The worker takes the step too, where it can."""
        return rule.local_rate

    def train(self, share: Share[Any]) -> None:
        """Fetch once the slowest is near enough, compute, push."""
        client, worker = share.client, share.worker
        worker.gradients.zero_()
        client.join(share.first)
        for step in share.steps():
            client.fetch(slowest=max(0, step - self.staleness))
            client.wait()
            share.compute(step)
            if client.local_rate > 0:
                worker.values.sub_(worker.gradients, alpha=client.local_rate)
            client.push(worker.gradients, step)
            worker.gradients.zero_()
            share.done(step)
        client.leave()
        client.drain()
