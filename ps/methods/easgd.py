"""Elastic averaging SGD: replicas train independently, each tied by a spring to a centre on the shards.

Zhang, Choromanska and LeCun, "Deep learning with Elastic Averaging SGD", NIPS 2015; `train` is its algorithm 1.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from ..optimizers.registry import AnyOptimizer
from ..optimizers.standard import Add
from ..server.serving import ServingConfig
from .method import Method
from .training_loop import TrainingLoop


class EASGD(Method, frozen=True, tag="easgd"):
    """Every N steps a replica and a shared centre move towards each other (Zhang et al., 2015).

    When: the network is slow, and machines differ.

    every: steps between two exchanges with the centre, τ of the paper. alpha: the moving rate α, how far a replica
    moves towards the centre, and the centre towards it; 0 for the paper's 0.9 / replicas.

    The centre takes no steps of its own, and slows replicas down. So without --lr the optimizer's own rate is
    multiplied by (replicas + 1) / replicas.

    The centre is what is tested at the end and saved. Each replica has its own parameters and optimizer state; a
    replica that was started again begins at the centre, with a new state.
    """

    leases_batches: ClassVar[bool] = True
    ends_at_any_step: ClassVar[bool] = True
    every: int = 10
    alpha: float = 0.0

    def __post_init__(self) -> None:
        self.demand_count("every", 1)
        self.demand_number("alpha", "from 0 to 1", lambda x: 0 <= x <= 1, proper=0.1)

    def configure_shards(self, optimizer: AnyOptimizer, replicas: int) -> ServingConfig:
        """Have the shards add pushes to the centre; the user's optimizer takes the replicas' steps."""
        return ServingConfig(Add(), replicas)

    @property
    def push_period(self) -> int:
        """Steps between two exchanges."""
        return self.every

    def scale_default_rate(self, replicas: int) -> float:
        """Return (p + 1) / p for p replicas: they draw a centre along that takes no steps of its own.

        In each exchange all replicas together move back by what the centre moves forward. So their steps of size s move
        the p + 1 of them by p s / (p + 1) each, whatever α and τ are.
        """
        return (replicas + 1) / replicas

    def count_updates(self, steps: int, replicas: int) -> int:
        """Return one update for each exchange."""
        return replicas * (steps // self.every)

    def check(self, optimizer: AnyOptimizer, replicas: int, steps: int) -> None:
        """Raise UsageError if the optimizer compensates the delay of pushes."""
        self.demand_undelayed(optimizer)

    def train(self, loop: TrainingLoop[Any]) -> Iterator[int]:
        """Run algorithm 1, with one more exchange at the end, so that the centre gets the last steps.

        The fetch of the centre overlaps the computation of the gradient.
        """
        client, optimizer = loop.client, loop.optimizer
        values, gradient = loop.worker.values, loop.worker.gradients
        # "x^i = x̃, t^i = 0"
        client.fetch()
        client.wait()
        state, done = optimizer.init_state(values), loop.start_step
        for step in loop.steps():
            # "if (τ divides t^i)"
            exchanges = step % self.every == 0 and step > loop.start_step
            gradient.zero_()
            if exchanges:
                client.fetch()
            yield step
            if loop.has_ended:
                break
            if exchanges:
                self._exchange_with_centre(loop, done)
            # "x^i ← x^i - η g^i(x)"
            taken = step - loop.start_step + 1
            optimizer.apply(values, gradient, state, loop.make_update(taken, step))
            # "t^i ← t^i + 1"
            loop.finish_step(step)
            done = step + 1
        if done > loop.start_step:
            if not client.is_fetching:
                client.fetch()
            self._exchange_with_centre(loop, done)
        client.leave()

    def _exchange_with_centre(self, loop: TrainingLoop[Any], done: int) -> None:
        """Move the replica and the centre towards each other, after `done` steps."""
        own = loop.worker.values.clone()
        loop.client.wait()  # the centre takes the place of the replica's values
        pull = torch.sub(own, loop.worker.values).mul_(self.alpha or 0.9 / loop.replicas)
        # "b) x̃ ← x̃ + α (x - x̃)"
        loop.client.push(pull, done - 1, donate=True)
        # "a) x^i ← x^i - α (x - x̃)"
        torch.sub(own, pull, out=loop.worker.values)
