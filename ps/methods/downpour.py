"""Downpour SGD: replicas fetch parameters and push gradients independently, through sharded parameter servers.

Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.1; `train` is algorithm 7.1 of its
supplement. What the paper does asynchronously: pushes are acknowledged while later steps compute, and with `overlap` a
fetch is requested one step before its parameters are needed.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from ...errors import UsageError
from ..optimizers.registry import AnyOptimizer
from .method import Method
from .training_loop import TrainingLoop


class Downpour(Method, frozen=True, tag="downpour"):
    """Replicas fetch parameters and push gradients independently (Dean et al., 2012).

    When: by default; slow or stalling machines delay no other.

    fetch, push: n_fetch and n_push of the paper, in steps. warm_start: replica 0 begins alone; the others follow
    once it has pushed so often. overlap: request parameters one step ahead, so that the fetch overlaps that step's
    work. This hides a slow network, and costs freshness: those parameters lack what was pushed during the step; with an
    optimizer whose step the worker cannot take itself (Adagrad) even its own push.
    """

    leases_batches: ClassVar[bool] = True
    ends_at_any_step: ClassVar[bool] = True
    fetch: int = 1
    push: int = 1
    warm_start: int = 0
    overlap: bool = False

    def __post_init__(self) -> None:
        self.demand_count("fetch", 1)
        self.demand_count("push", 1)
        self.demand_count("warm_start", 0)

    def local_rate(self, optimizer: AnyOptimizer) -> float:
        """Return the optimizer's rate for the local step, if a worker can take its step."""
        return optimizer.local_rate

    def count_pushes(self, steps: int) -> int:
        """Return how often a replica pushes in steps 0 to steps - 1; the last push is for what is left over."""
        return -(-steps // self.push) + ((steps - 1) % self.push > 0 if steps else 0)

    @property
    def push_period(self) -> int:
        """n_push of the paper."""
        return self.push

    def count_updates(self, steps: int, replicas: int) -> int:
        """Return one update for every n_push steps."""
        return steps * replicas // self.push

    def check(self, optimizer: AnyOptimizer, replicas: int, steps: int) -> None:
        """Raise UsageError if replicas would wait for pushes that replica 0 never makes in so many steps.

        Also if a fetch would overtake the push that the optimizer must see before it.
        """
        if self.overlap and optimizer.needs_every_fetch:
            facts = (
                f"optimizer {optimizer.name} compares with what a replica fetched last, which overlap fetches before it"
                " pushes"
            )
            raise UsageError("E264", facts, fix="leave overlap out: --method downpour")
        pushes = self.count_pushes(steps)
        if replicas > 1 and self.warm_start > pushes:
            facts = f"a warm start of {self.warm_start} pushes, but replica 0 makes {pushes} in {steps} steps"
            raise UsageError("E261", facts, fix="a smaller warm_start of --method downpour, or more --epochs")

    def train(self, loop: TrainingLoop[Any]) -> Iterator[int]:
        """Run algorithm 7.1: DownpourSGDClient(α, n_fetch, n_push)."""
        client, worker = loop.client, loop.worker
        rate = client.local_rate
        # Steps add to `gradient`, so it is the accrued gradient too, unless the local step needs this step's alone.
        is_separate = (rate > 0 or loop.clips_gradients) and self.push > 1
        # "accruedgradients ← 0"
        gradient = loop.gradient.zero(apart=True)
        accrued = gradient.zeros_like() if is_separate else gradient
        donate = is_separate and not accrued.tables  # the memory to the client, which then need not copy it
        if self.warm_start and loop.start_step == 0 and loop.replica > 0:
            client.fetch(min_version=self.warm_start)
            client.wait()  # before any batch is leased, of which replica 0 may need all
        is_pushed, exchanges = True, False
        # "while true"
        for step in loop.steps():
            # "if (step mod n_fetch) == 0: StartAsynchronouslyFetchingParameters(parameters)"
            if step == loop.start_step or step % self.fetch == 0:
                if not (client.is_fetching or exchanges):
                    client.fetch(changed_only=loop.may_fetch_changes(step))
                client.wait(accrued if is_separate and not accrued.is_undefined else None)
            if self.overlap and (step + 1) % self.fetch == 0 and not loop.is_last:
                client.fetch(changed_only=True)
            # "data ← GetNextMinibatch(); gradient ← ComputeGradient(parameters, data)"
            yield step
            if loop.has_ended:
                break
            is_pushed = False
            pushes = step % self.push == 0 or loop.is_last
            skipped = loop.take_skipped() if pushes else ()
            # The next step fetches: what the push has changed comes with its acknowledgement.
            exchanges = pushes and not (self.overlap or loop.is_last or (step + 1) % self.fetch)
            # "accruedgradients ← accruedgradients + gradient; parameters ← parameters - α * gradient"
            own_rate = 0.0 if exchanges and not skipped else rate  # the shards take this step on what they send at once
            if is_separate:
                gradient.descend_and_accumulate(worker.values, own_rate, accrued)
            elif own_rate > 0:
                gradient.descend(worker.values, own_rate)
            # "if (step mod n_push) == 0: StartAsynchronouslyPushingGradients(accruedgradients)"
            if pushes:
                if exchanges:
                    client.exchange(accrued, step, changed_only=True, donate=donate, skipped=skipped)
                else:
                    client.push(accrued, step, donate=donate, skipped=skipped)
                is_pushed = True
                # "accruedgradients ← 0"
                if donate:
                    accrued.replace_memory()
                else:
                    accrued.zero(apart=True)
            # "step ← step + 1"
            loop.finish_step(step, client.wait if exchanges else lambda: None)
        if not is_pushed:  # nobody knew that no step would follow
            client.push(accrued, step - 1, skipped=loop.take_skipped())
        client.leave()
