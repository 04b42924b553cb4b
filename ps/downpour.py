"""Downpour SGD: replicas that fetch parameters and push gradients on their own, through sharded parameter servers.

Dean et al., NIPS 2012, section 4.1; `train` is algorithm 7.1 of its supplement. "Asynchronously" there is here: pushes
are acknowledged while later steps compute, and with `overlap` fetches are asked for one step before they are needed.
"""

from typing import Any

import torch

from ..partition.errors import UsageError
from .method import Method
from .rules import AnyRule
from .share import Share


class Downpour(Method, frozen=True, tag="downpour"):
    """How often a replica fetches and pushes.

    fetch, push: n_fetch and n_push of the paper, in steps.
    warm_start: replica 0 begins alone; the others follow once it has pushed so often.
    overlap: ask for parameters one step ahead, so that the fetch overlaps that step's work; else ask and wait. It hides
    a slow network, and costs freshness: those parameters lack what was pushed during the step, with a rule whose step
    the worker cannot take itself (Adagrad) even its own push.
    """

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

    def pushes(self, steps: int) -> int:
        """How often a replica pushes in steps 0 to steps - 1, the last for what is left over."""
        return -(-steps // self.push) + ((steps - 1) % self.push > 0 if steps else 0)

    def check(self, rule: AnyRule, replicas: int, steps: int) -> None:
        """UsageError where the others would wait for pushes that replica 0 never makes in so many steps."""
        if replicas > 1 and self.warm_start > self.pushes(steps):
            raise UsageError(
                "E261",
                f"a warm start of {self.warm_start} pushes, but replica 0 makes {self.pushes(steps)} in {steps} steps",
                fix="a smaller --warm-start, or more --epochs",
            )

    def train(self, share: Share[Any]) -> None:
        """Fetch, compute, step, push."""
        client, worker = share.client, share.worker
        rate = client.local_rate
        gradient = worker.gradients.zero_()
        # A step adds to `gradient`. So that is the accrued one too, unless the local step needs this step's alone.
        apart = (rate > 0 or share.clips) and self.push > 1
        accrued = torch.zeros_like(gradient) if apart else gradient
        for step in share.steps():
            if step == share.first or step % self.fetch == 0:
                if not client.fetching:
                    client.fetch(at_least=self.warm_start if step == 0 and share.replica > 0 else 0)
                client.wait(accrued if apart else None)
            if self.overlap and (step + 1) % self.fetch == 0 and not share.last:
                client.fetch()
            share.compute(step)
            if rate > 0:
                worker.values.sub_(gradient, alpha=rate)
            if apart:
                accrued.add_(gradient)
                gradient.zero_()
            if step % self.push == 0 or share.last:
                client.push(accrued, step)
                accrued.zero_()
            share.done(step)
        client.drain()
