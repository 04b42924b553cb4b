"""Synchronous training with backup workers: the first N gradients on the same parameters make one update.

Chen et al., "Revisiting Distributed Synchronous SGD", 2016, algorithms 3 and 4. Without backups it equals one process
with N times the batch.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from ...errors import UsageError
from ..optimizers.registry import AnyOptimizer
from ..server.serving import ServingConfig
from .method import Method
from .training_loop import TrainingLoop


class Sync(Method, frozen=True, tag="sync"):
    """All replicas step together; the slowest `backups` gradients are dropped (Chen et al., 2016).

    When: the result must not depend on timing: it is that of one process with N times the batch.

    backups: replicas whose gradients an update does not wait for.
    """

    lock_step: ClassVar[bool] = True
    ends_at_any_step: ClassVar[bool] = True
    backups: int = 0

    def __post_init__(self) -> None:
        self.demand_count("backups", 0)

    @property
    def backup_replicas(self) -> int:
        """The backups."""
        return self.backups

    def configure_shards(self, optimizer: AnyOptimizer, replicas: int) -> ServingConfig:
        """Have the shards update with the mean of the first pushes on a version, and drop later ones (algorithm 4)."""
        return ServingConfig(optimizer, replicas, aggregate=replicas - self.backups)

    def count_updates(self, steps: int, replicas: int) -> int:
        """Return one update for each step."""
        return steps

    def check(self, optimizer: AnyOptimizer, replicas: int, steps: int) -> None:
        """Raise UsageError if no replica is left to wait for, or the optimizer compensates the delay of pushes."""
        self.demand_undelayed(optimizer)
        if self.backups >= replicas:
            facts = f"{self.backups} backups among {replicas} replicas leave none whose gradient is waited for"
            raise UsageError("E263", facts, fix=f"--method sync:backups={replicas - 1}")

    def train(self, loop: TrainingLoop[Any]) -> Iterator[int]:
        """Run algorithm 3. A step is a version of the shards; a replica that is too late goes on at the newest.

        A replica that was started again repeats steps whose version exists already, which changes nothing.
        """
        client, gradient = loop.client, loop.gradient
        step, has_read = loop.start_step, False

        def read_next() -> None:
            nonlocal has_read
            if not has_read:
                client.fetch(min_version=step + 1, changed_only=True)
                client.wait()
                has_read = True

        while loop.load_batch(step):
            # "wait to read θ(t) from parameter servers"
            if step == loop.start_step or client.version < step:
                client.fetch(min_version=step, changed_only=loop.may_fetch_changes(step))
                client.wait()
            # "G_k(t) := 0; for i = 1, ..., B: G_k(t) ← G_k(t) + 1/B ∇F(x_k,i; θ(t))"
            gradient.zero(apart=True)
            yield step
            if loop.has_ended:
                break
            # "send (G_k(t), t) to parameter servers"
            client.push(gradient, step, base=step)
            has_read = False
            # With backups, others may not go on before this replica has evaluated: the next version may never come.
            loop.finish_step(step, (lambda: None) if self.backups else read_next)
            read_next()
            step = max(step + 1, loop.agree(client.version, step)) if self.backups else step + 1
        client.leave()
