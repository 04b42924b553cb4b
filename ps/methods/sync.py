"""Synchronous training with backup workers: the first N gradients on the same parameters make one update.

Chen et al., "Revisiting Distributed Synchronous SGD", 2016. Without backups it equals one process with N times the
batch.
"""

from typing import Any

from ...errors import UsageError
from .method import Method, Serving
from ..optimizers.registry import AnyRule
from .training_loop import Share


class Sync(Method, frozen=True, tag="sync"):
    """backups: replicas whose gradients an update does not wait for."""

    backups: int = 0

    def __post_init__(self) -> None:
        self.demand_count("backups", 0)

    def serving(self, rule: AnyRule, replicas: int) -> Serving:
        """The mean of the first pushes is an update; those that come after it are dropped."""
        return Serving(rule, replicas, gather=replicas - self.backups)

    def updates(self, steps: int, replicas: int) -> int:
        """One a step."""
        return steps

    def check(self, rule: AnyRule, replicas: int, steps: int) -> None:
        """UsageError where no replica is left to wait for."""
        self.demand_undelayed(rule)
        if self.backups >= replicas:
            facts = f"{self.backups} backups among {replicas} replicas leave none whose gradient is waited for"
            raise UsageError("E263", facts, fix=f"--method sync:backups={replicas - 1}")

    def train(self, share: Share[Any]) -> None:
        """Compute, push, fetch what the update made. A step is a version: who comes late with one goes on at the next.

        A replica that was started again takes steps once more whose version is there already; that changes nothing.
        """
        client, gradient = share.client, share.gradient
        step = share.first
        while share.at(step):
            if step == share.first or client.version < step:
                client.fetch(at_least=step, changes=share.keeps(step))
                client.wait()
            gradient.zero()
            share.compute(step)
            client.push(gradient, step, base=step)
            share.done(step)
            client.fetch(at_least=step + 1, changes=True)
            client.wait()
            step = max(step + 1, share.agree(client.version, step)) if self.backups else step + 1
        client.leave()
