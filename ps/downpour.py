"""Downpour SGD: replicas that fetch parameters and push gradients on their own, through sharded parameter servers.

Dean et al., NIPS 2012, section 4.1; `train` is algorithm 7.1 of its supplement. "Asynchronously" there is here: pushes
are acknowledged while later steps compute, and with `overlap` fetches are asked for one step before they are needed.
"""

import math
from collections.abc import Callable, Sized
from typing import Protocol, TypeVar

import msgspec
import torch
from torch import Tensor

from ..partition.errors import Diverged, UsageError
from .client import Client

B = TypeVar("B", bound=Sized)
B_contra = TypeVar("B_contra", bound=Sized, contravariant=True)

Report = Callable[[int, float | None, int], None]


class Trainable(Protocol[B_contra]):
    """The parameters of one machine and what computes their gradients.

    values: flat parameters [n]; gradients: their twin [n]. Both are written in place.
    """

    @property
    def values(self) -> Tensor: ...

    @property
    def gradients(self) -> Tensor: ...

    def step(self, batch: B_contra, step: int) -> float | None:
        """Add the gradient of the batch's mean loss to `gradients`; the loss on the worker that holds it, else None."""
        ...


class Downpour(msgspec.Struct, frozen=True, tag="downpour"):
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
        _check_count("fetch", self.fetch, 1)
        _check_count("push", self.push, 1)
        _check_count("warm_start", self.warm_start, 0)

    def pushes(self, steps: int) -> int:
        """How often a replica pushes in steps 0 to steps - 1, the last for what is left over."""
        return -(-steps // self.push) + ((steps - 1) % self.push > 0 if steps else 0)

    def check(self, steps: int) -> None:
        """UsageError where the others would wait for pushes that replica 0 never makes in so many steps."""
        if self.warm_start > self.pushes(steps):
            raise UsageError(
                "E261",
                f"a warm start of {self.warm_start} pushes, but replica 0 makes {self.pushes(steps)} in {steps} steps",
                fix="a smaller --warm-start, or more --epochs",
            )


def train(
    method: Downpour,
    worker: Trainable[B],
    client: Client,
    batches: Callable[[int], B],
    *,
    replica: int,
    replicas: int,
    steps: range,
    report: Report | None = None,
    clip: Callable[[int], object] | None = None,
) -> None:
    """Train with batches replica, replica + replicas, ... of the stream; all pushes are acknowledged at the end.

    Replica 0 must have put its values to the shards. All workers of a replica take the same `steps`, as they exchange
    activations; a run may be continued with steps that begin where the last ended. `worker.values` is the client's.
    batches: batch number -> batch, whose length is its number of samples.
    clip: called at each step, when `worker.gradients` are those of this step alone, and may scale them.
    report: called after each step with the step, the loss (None where this worker does not hold it) and the samples.
    Diverged where the loss is not finite.
    """
    if replicas > 1 and steps.start == 0:
        method.check(len(steps))
    rate = client.local_rate
    gradient = worker.gradients.zero_()
    # A step adds to `gradient`. So that is the accrued one too, unless the local step needs this step's alone.
    apart = (rate > 0 or clip is not None) and method.push > 1
    accrued = torch.zeros_like(gradient) if apart else gradient
    for step in steps:
        if step == steps.start or step % method.fetch == 0:
            if not client.fetching:
                client.fetch(at_least=method.warm_start if step == 0 and replica > 0 else 0)
            client.wait(accrued if apart else None)
        if method.overlap and (step + 1) % method.fetch == 0 and step + 1 in steps:
            client.fetch()
        batch = batches(replica + step * replicas)
        loss = worker.step(batch, step)
        demand_finite(client.name, step, loss)
        if clip is not None:
            clip(step)
        if rate > 0:
            worker.values.sub_(gradient, alpha=rate)
        if apart:
            accrued.add_(gradient)
            gradient.zero_()
        if step % method.push == 0 or step == steps[-1]:
            client.push(accrued, step)
            accrued.zero_()
        if report is not None:
            report(step, loss, len(batch))
    client.drain()


def demand_finite(who: str, step: int, loss: float | None) -> None:
    """Diverged where a loss is there and not finite."""
    if loss is None or math.isfinite(loss):
        return
    fix = "use a smaller rate: a tenth of --lr, say" if step else "check the data and the model: no step was taken yet"
    raise Diverged("E702", f"the loss of {who} at step {step} is {loss}", fix=fix)


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        option = name.replace("_", "-")
        raise UsageError(
            "E260",
            f"downpour's {name} is {value!r}; it must be a whole number of at least {least}",
            fix=f"--{option} {least}",
        )
