"""`Share`: one worker's part in training, as a method sees it - its steps, their gradients, its client."""

import math
from collections.abc import Callable, Iterator, Sized
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from ...errors import Diverged
from ...runtime.worker.flat_gradient import Gradient
from ..client.client import Client
from ..optimizers.optimizer import Rule

B = TypeVar("B", bound=Sized)
B_contra = TypeVar("B_contra", bound=Sized, contravariant=True)

Batches = Callable[[int], B | None]  # step -> the replica's batch, None after the last
Report = Callable[[int, float | None, int], None]


class Trainable(Protocol[B_contra]):
    """The parameters of one machine and what computes their gradients.

    values: flat parameters [n]; gradients: their twin [n]. Both are written in place.
    """

    @property
    def values(self) -> Tensor: ...

    @property
    def gradients(self) -> Tensor: ...

    def move(self, values: Tensor) -> None:
        """Compute on the parameters in other memory [n] from now on, which holds what it is to hold already."""
        ...

    def step(self, batch: B_contra, step: int) -> float | None:
        """Add the gradient of the batch's mean loss to `gradients`; the loss on the worker that holds it, else None."""
        ...


class Share(Generic[B]):
    """What a method's loop is made of. All workers of a replica take the same steps, as they exchange activations.

    worker: its `values` are those of the client. rule: the one that the user chose. batches: the replica's batch at
    each step, whose length is its number of samples. first: the step to begin with, more than 0 where training goes on.
    clip: may scale the gradients of a step, which are in `worker.gradients` alone then.
    gradient: the worker's, where it has tables of which a step touches some rows; methods that know of those use it.
    agree: number, step -> the number that machine 0 of the replica has said, which all its machines must ask for.
    report: is told after each step the step, the loss (None where this worker does not hold it) and the samples.
    """

    def __init__(
        self,
        worker: Trainable[B],
        client: Client,
        rule: Rule,
        batches: Batches[B],
        *,
        replicas: int,
        first: int = 0,
        clip: Callable[[int], object] | None = None,
        agree: Callable[[int, int], int] = lambda number, step: number,
        report: Report | None = None,
        gradient: Gradient | None = None,
    ) -> None:
        self.gradient = gradient or Gradient(worker.gradients)
        self.worker, self.client, self.rule, self.replicas, self.first = worker, client, rule, replicas, first
        self.last = False  # whether no step follows the present one
        self._batches, self._clip, self._report = batches, clip, report
        self.agree = agree
        self._batch: B | None = None
        self._loss: float | None = None

    @property
    def replica(self) -> int:
        """The replica's number."""
        return self.client.replica

    @property
    def clips(self) -> bool:
        """Whether gradients are scaled, so that those of several steps must not be added up in `worker.gradients`."""
        return self._clip is not None

    def at(self, step: int) -> bool:
        """Get ready for a step; whether there is a batch for it. For methods that do not take one after the other."""
        self._batch = self._batches(step)
        return self._batch is not None

    def steps(self) -> Iterator[int]:
        """One step after the other, as long as there are batches."""
        step = self.first
        batch = self._batches(step)
        while batch is not None:
            following = self._batches(step + 1)
            self._batch, self.last = batch, following is None
            yield step
            batch, step = following, step + 1

    def keeps(self, step: int) -> bool:
        """Whether a fetch before this step may bring changes alone: the first may, where training begins with it."""
        return step > self.first or step == 0

    def compute(self, step: int) -> None:
        """Add the gradient of the step's batch to `worker.gradients`. Diverged where the loss is not finite."""
        assert self._batch is not None
        self._loss = self.worker.step(self._batch, step)
        demand_finite(self.client.name, step, self._loss)
        if self._clip is not None:
            self._clip(step)

    def done(self, step: int) -> None:
        """The step is over: report it."""
        assert self._batch is not None
        if self._report is not None:
            self._report(step, self._loss, len(self._batch))


def demand_finite(who: str, step: int, loss: float | None) -> None:
    """Diverged where a loss is there and not finite."""
    if loss is None or math.isfinite(loss):
        return
    fix = "use a smaller rate: a tenth of --lr, say" if step else "check the data and the model: no step was taken yet"
    raise Diverged("E702", f"the loss of {who} at step {step} is {loss}", fix=fix)
