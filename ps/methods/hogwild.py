"""Hogwild: the replicas of one host update the same memory, without a lock.

Niu et al., "Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent", NIPS 2011, algorithm 1. The
parameters of a machine and the optimizer's state exist once, for the workers of all replicas: nothing is fetched or
pushed. In sparse tables a step changes only the rows that it has touched. An update may undo part of another, and a
gradient may be computed on parameters that change meanwhile: that is the method.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from ...errors import Diverged, UsageError
from ...runtime.held_memory import return_free_memory
from ..optimizers.registry import AnyOptimizer
from ..server.shared_parameters import SharedParameters
from ..slices.slice_state import is_finite
from .method import Method
from .training_loop import TrainingLoop


class Hogwild(Method, frozen=True, tag="hogwild"):
    """Replicas of one host update shared memory, without a lock (Niu et al., 2011).

    When: there is one host, and gradients are sparse.

    One shard holds all parameters of a machine, since they are one piece of memory.
    """

    needs_one_shard: ClassVar[bool] = True
    pushes_gradients: ClassVar[bool] = False

    def check(self, optimizer: AnyOptimizer, replicas: int, steps: int) -> None:
        """Raise UsageError if the optimizer compensates the delay of pushes."""
        self.demand_undelayed(optimizer)

    def train(self, loop: TrainingLoop[Any]) -> Iterator[int]:
        """Run algorithm 1. A machine that trains nothing has nothing to share."""
        gradient = loop.gradient
        shared = _map_shared_parameters(loop) if loop.worker.values.numel() else None
        # "loop: sample e uniformly at random from E"
        for step in loop.steps():
            updates_before = 0 if shared is None else shared.updates
            gradient.zero(apart=True)
            # "read current state x_e and evaluate G_e(x)"
            yield step
            # "for v ∈ e do x_v ← x_v - γ b_vᵀ G_e(x)"
            if shared is not None:
                shared.apply(loop.optimizer, gradient, updates_before, total=loop.total_steps * loop.replicas)
            loop.finish_step(step)
        if not is_finite(loop.worker.values):
            facts = f"the parameters of {loop.client.name} are not finite after its last step"
            raise Diverged("E704", facts, fix=f"lower the learning rate: --lr {loop.optimizer.lr / 10:g}")


def _map_shared_parameters(loop: TrainingLoop[Any]) -> SharedParameters:
    """Map the parameters of this worker's machine, on which its model computes from now on.

    Raises UsageError if they are on another host.
    """
    client = loop.client
    location = client.request("share_memory", "shared_memory", {"replica": loop.replica})
    try:
        shared = SharedParameters(location, replica=loop.replica)
    except OSError as error:
        facts = f"hogwild needs all replicas on one host; {client.name} does not find the parameters' memory: {error}"
        raise UsageError("E269", facts, fix="--method downpour, or all processes on one host") from error
    client.values = shared.values
    loop.worker.move(shared.values)
    return_free_memory()
    return shared
