"""Downpour SGD: replicas that fetch parameters and push gradients on their own, through sharded parameter servers.

Dean et al., NIPS 2012, section 4.1; `train` is algorithm 7.1 of its supplement. "Asynchronously" there is here: pushes
are acknowledged while later steps compute, and with `overlap` fetches are asked for one step before they are needed.
"""

from typing import Any, ClassVar

from ...errors import UsageError
from .method import Method
from ..optimizers.registry import AnyRule
from .training_loop import Share


class Downpour(Method, frozen=True, tag="downpour"):
    """How often a replica fetches and pushes.

    fetch, push: n_fetch and n_push of the paper, in steps.
    warm_start: replica 0 begins alone; the others follow once it has pushed so often.
    overlap: ask for parameters one step ahead, so that the fetch overlaps that step's work; else ask and wait. It hides
    a slow network, and costs freshness: those parameters lack what was pushed during the step, with a rule whose step
    the worker cannot take itself (Adagrad) even its own push.
    """

    leased: ClassVar[bool] = True
    fetch: int = 1
    push: int = 1
    warm_start: int = 0
    overlap: bool = False

    def __post_init__(self) -> None:
        self.demand_count("fetch", 1)
        self.demand_count("push", 1)
        self.demand_count("warm_start", 0)

    def local_rate(self, rule: AnyRule) -> float:
        """The worker takes the step too, where it can."""
        return rule.local_rate

    def made(self, steps: int) -> int:
        """How often a replica pushes in steps 0 to steps - 1, the last for what is left over."""
        return -(-steps // self.push) + ((steps - 1) % self.push > 0 if steps else 0)

    @property
    def period(self) -> int:
        """As n_push says."""
        return self.push

    def updates(self, steps: int, replicas: int) -> int:
        """Of every n_push steps one."""
        return steps * replicas // self.push

    def check(self, rule: AnyRule, replicas: int, steps: int) -> None:
        """UsageError where the others would wait for pushes that replica 0 never makes in so many steps.

        And where a fetch would overtake the push that the rule needs to see before it.
        """
        if self.overlap and rule.remembers:
            facts = (
                f"rule {rule.name} compares with what a replica fetched last, which overlap fetches before it pushes"
            )
            raise UsageError("E264", facts, fix="leave out --overlap")
        if replicas > 1 and self.warm_start > self.made(steps):
            raise UsageError(
                "E261",
                f"a warm start of {self.warm_start} pushes, but replica 0 makes {self.made(steps)} in {steps} steps",
                fix="a smaller --warm-start, or more --epochs",
            )

    def train(self, share: Share[Any]) -> None:
        """Fetch, compute, step, push."""
        client, worker = share.client, share.worker
        rate = client.local_rate
        gradient = share.gradient.zero()
        # A step adds to `gradient`. So that is the accrued one too, unless the local step needs this step's alone.
        apart = (rate > 0 or share.clips) and self.push > 1
        accrued = gradient.twin() if apart else gradient
        given = apart and not accrued.tables  # to the client, for good: then it need not be copied
        if self.warm_start and share.first == 0 and share.replica > 0:
            client.fetch(at_least=self.warm_start)
            client.wait()  # before any batch is asked for, of which replica 0 may need all
        for step in share.steps():
            if step == share.first or step % self.fetch == 0:
                if not client.fetching:
                    client.fetch(changes=share.keeps(step))
                client.wait(accrued if apart and not accrued.void else None)
            if self.overlap and (step + 1) % self.fetch == 0 and not share.last:
                client.fetch(changes=True)
            share.compute(step)
            if apart:
                gradient.spend(worker.values, rate, accrued)
            elif rate > 0:
                gradient.descend(worker.values, rate)
            if step % self.push == 0 or share.last:
                if self.overlap or share.last or (step + 1) % self.fetch:
                    client.push(accrued, step, given=given)
                else:
                    client.exchange(accrued, step, changes=True, given=given)
                if given:
                    accrued.renew()
                else:
                    accrued.zero()
            share.done(step)
        client.leave()
