"""Stale synchronous parallel: a replica waits while it is more than `staleness` steps ahead of the slowest.

Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013, section 3.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from ..client.client import Client
from ..optimizers.registry import AnyOptimizer
from .method import Method
from .training_loop import TrainingLoop


class SSP(Method, frozen=True, tag="ssp"):
    """Replicas run independently, but at most `staleness` steps apart (Ho et al., 2013).

    When: the staleness of gradients must have a bound.

    staleness: steps that a replica may be ahead of the slowest; with 0 all take their steps together.
    """

    leases_batches: ClassVar[bool] = True
    ends_at_any_step: ClassVar[bool] = True
    staleness: int = 3

    def __post_init__(self) -> None:
        self.demand_count("staleness", 0)

    def local_rate(self, optimizer: AnyOptimizer) -> float:
        """Return the optimizer's rate for the local step, if a worker can take its step."""
        return optimizer.local_rate

    def choose_start_step(self, client: Client, step: int) -> int:
        """Return the step of the slowest replica, if it is later: the others would have to wait for a new one."""
        return client.join(step)

    def train(self, loop: TrainingLoop[Any]) -> Iterator[int]:
        """Fetch once the slowest replica is near enough, compute, push."""
        client, worker = loop.client, loop.worker
        gradient = loop.gradient.zero(apart=True)
        client.join(loop.start_step)

        def read_own() -> None:
            client.fetch(changed_only=True)
            client.wait()

        for step in loop.steps():
            # "the slowest and fastest workers must be ≤ s clocks apart, otherwise the fastest worker is forced to wait"
            client.fetch(min_step=max(0, step - self.staleness), changed_only=loop.may_fetch_changes(step))
            client.wait()
            yield step
            if loop.has_ended:
                break
            # "Read-my-writes: a worker p will always see the effects of its own updates"
            if client.local_rate > 0:
                gradient.descend(worker.values, client.local_rate)
            client.push(gradient, step, skipped=loop.take_skipped())  # the push is also the worker's clock
            gradient.zero(apart=True)
            loop.finish_step(step, read_own if client.local_rate == 0 else lambda: None)
        client.leave()
