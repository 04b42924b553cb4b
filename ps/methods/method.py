"""`Method`: how replicas train together. It has the loop of each worker, and says what the shards do with its pushes.

A method is one small file: a frozen Struct whose fields are its options, and its name in registry.py.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import msgspec

from ...errors import UsageError
from ..client.client import Client
from ..optimizers.registry import AnyOptimizer
from ..server.serving import ServingConfig
from .training_loop import TrainingLoop


class Method(msgspec.Struct, frozen=True):
    """The base class of all methods. Methods are plain data, so they travel in messages.

    needs_one_shard: all parameters of a machine must lie on one shard. needs_all_replicas: the run ends when a replica
    is lost, as the others cannot go on without it. lock_step: replicas wait for each other at every push; a loss takes
    all of them back to the last version that all have saved. leases_batches: replicas are given batches as they need
    them (batch_leases.py), and may join and leave during the run; otherwise they take turns, so that a run can be
    repeated exactly. pushes_gradients: gradients go to the shards. ends_at_any_step: `train` also ends properly where
    the loop has ended when it goes on after a step that it has yielded.
    """

    needs_one_shard: ClassVar[bool] = False
    needs_all_replicas: ClassVar[bool] = False
    lock_step: ClassVar[bool] = False
    leases_batches: ClassVar[bool] = False
    pushes_gradients: ClassVar[bool] = True
    ends_at_any_step: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The name by which the method is chosen."""
        return str(self.__struct_config__.tag)

    def configure_shards(self, optimizer: AnyOptimizer, replicas: int) -> ServingConfig:
        """Return what the shards of a run with the user's optimizer do; by default every push is an update."""
        return ServingConfig(optimizer, replicas)

    @property
    def backup_replicas(self) -> int:
        """Replicas of a lock-step method that may be missing while the others go on."""
        return 0

    @property
    def push_period(self) -> int:
        """Steps of a replica between two pushes; checkpoints are written after a multiple of them."""
        return 1

    def scale_default_rate(self, replicas: int) -> float:
        """Return by what an optimizer's own rate is multiplied, where the user names none."""
        return 1.0

    def local_rate(self, optimizer: AnyOptimizer) -> float:
        """Return the rate of the plain SGD step that a worker takes with each gradient it pushes; 0 for none."""
        return 0.0

    def count_updates(self, steps: int, replicas: int) -> int:
        """Return about the version of the shards once every replica has taken so many steps."""
        return steps * replicas

    def check(self, optimizer: AnyOptimizer, replicas: int, steps: int) -> None:
        """Raise UsageError if a run of so many steps of each replica with this optimizer cannot work."""

    def choose_start_step(self, client: Client, step: int) -> int:
        """Return the step that a worker begins with, this one or a later one, before it is leased any batch."""
        return step

    def train(self, loop: TrainingLoop[Any]) -> Iterator[int]:
        """Train until the loop has no more batches; all pushes are acknowledged then.

        Yields each step whose gradient it needs next: whoever goes through the steps adds it to the loop's, as
        `TrainingLoop.run` does, or ends the loop. Before that, replica 0 has put values to the shards.
        """
        raise NotImplementedError

    def demand_count(self, field: str, minimum: int) -> None:
        """Raise UsageError unless a field is a whole number of at least `minimum`."""
        value = getattr(self, field)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            facts = f"{self.name}'s {field} is {value!r}; it must be a whole number of at least {minimum}"
            raise UsageError("E260", facts, fix=f"--method {self.name}:{field}={minimum}")

    def demand_number(self, field: str, what: str, holds: Callable[[float], bool], *, proper: float) -> None:
        """Raise UsageError unless a field is a number that is `what`. proper: such a number, for the message."""
        value = getattr(self, field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not holds(value):
            facts = f"{self.name}'s {field} is {value!r}; it must be {what}"
            raise UsageError("E266", facts, fix=f"--method {self.name}:{field}={proper:g}")

    def demand_undelayed(self, optimizer: AnyOptimizer) -> None:
        """Raise UsageError if the optimizer compensates the delay between a fetch and its push: there is none here."""
        if optimizer.compensates_delay:
            facts = (
                f"optimizer {optimizer.name} compensates the delay of single pushes, and method {self.name} has none"
            )
            raise UsageError("E262", facts, fix="--method downpour, or --optimizer sgd")
