"""All-reduce: the workers of a machine average their gradients among themselves, and each takes the same step.

Synchronous data parallelism on gloo, the engine of torch.distributed, by rings (Patarasuk and Yuan, 2009). It equals
one process with N times the batch. The shards hold what a run begins with and what it has come to, no more.

What gloo sends is neither encrypted nor signed, so it stays on the loopback of one host.
"""

from typing import Any, ClassVar

from ...errors import Diverged
from .all_reduce_ import Group
from ..slices.slice_state import finite
from ..optimizers.sparse_update import apply_lazily
from .method import Method
from ..optimizers.optimizer import Update
from ..optimizers.registry import AnyRule
from .training_loop import Share


class AllReduce(Method, frozen=True, tag="allreduce"):
    """No replica has all of the others' gradients without any of them, so the run ends with the first that is lost."""

    together: ClassVar[bool] = True
    pushes: ClassVar[bool] = False

    def updates(self, steps: int, replicas: int) -> int:
        """A step of all is one."""
        return steps

    def check(self, rule: AnyRule, replicas: int, steps: int) -> None:
        """UsageError where the rule is about pushes."""
        self.demand_undelayed(rule)

    def train(self, share: Share[Any]) -> None:
        """Compute, average, step; at the end replica 0 gives the shards the parameters and what the rule remembers."""
        client, worker, rule = share.client, share.worker, share.rule
        client.fetch()
        client.wait()
        values, gradient = worker.values, share.gradient
        state, number = rule.state(values), client.version
        with Group(client, size=share.replicas) as group:
            for step in share.steps():
                gradient.zero()
                share.compute(step)
                group.average(gradient, step)
                number += 1
                apply_lazily(rule, values, gradient, state, Update(number))
                share.done(step)
        if not finite(values):
            facts = f"the parameters of {client.name} are not finite after its last step"
            raise Diverged("E704", facts, fix=f"lower the rate: --lr {rule.lr / 10:g}")
        if share.replica == 0:
            client.put(number, state)
        client.drain()
