"""`TrainingLoop`: one worker's part in training, as a method sees it: its steps, their gradients, its client."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from ...errors import Diverged
from ...runtime.worker.flat_gradient import FlatGradient
from ..client.client import Client
from ..optimizers.optimizer import Optimizer, Update

B = TypeVar("B", bound=Sized)
B_contra = TypeVar("B_contra", bound=Sized, contravariant=True)

Batches = Callable[[int], B | None]
"""Return the replica's batch at a step, or None after the last step."""

Report = Callable[[int, float | None, int], None]
"""Take note of a step, its loss (None if this worker does not know it), and its number of samples."""


class Trainable(Protocol[B_contra]):
    """The parameters of one machine, and what computes their gradients.

    values: the flat parameters [n]; gradients: their gradients [n]. Both are written in place.
    """

    @property
    def values(self) -> Tensor: ...

    @property
    def gradients(self) -> Tensor: ...

    def move(self, values: Tensor) -> None:
        """Use other memory [n] for the parameters from now on; it already has their values."""
        ...

    def step(self, batch: B_contra, step: int) -> float | None:
        """Add the gradient of the batch's mean loss to `gradients`; return the loss if this worker knows it."""
        ...


class TrainingLoop(Generic[B]):
    """What a method's loop is made of. All workers of a replica take the same steps, as they exchange activations.

    worker: its `values` are those of the client. optimizer: the user's. batches: the replica's batch at each step,
    whose length is its number of samples. start_step: the step to begin with, more than 0 if training is resumed.
    total_steps: of each replica in the whole run, about; 0 where that does not matter. clip:
    may scale the gradients of a step, which must be alone in `worker.gradients`. agree: called with a number and a
    step; returns the number that machine 0 of the replica gave, for which all its machines must ask. report: called
    after each step. gradient: the worker's gradient with its sparse tables, for methods that push touched rows only.
    keep: called with tensors that this worker alone has, see `keep`. read_state: returns what the user's optimizer
    remembered of the parameters, by name tensors [n], where the run resumes. skips: returns the numbers of the slices
    that have the gradient of a step's batch already, from a replica that was lost.

    Attributes:
        is_last: whether no step follows the present one, as far as `batches` knows.
        has_ended: whether training ends before the step that was yielded last, of which there is no gradient.
        settle: waits for values that contain the step that is reported, where they are on their way.
        factors: by what the user multiplies the learning rate at present, for all groups of parameters or for each;
            none where a schedule says that.
    """

    def __init__(
        self,
        worker: Trainable[B],
        client: Client,
        optimizer: Optimizer,
        batches: Batches[B],
        *,
        replicas: int,
        start_step: int = 0,
        total_steps: int = 0,
        clip: Callable[[int], object] | None = None,
        agree: Callable[[int, int], int] = lambda number, step: number,
        report: Report | None = None,
        gradient: FlatGradient | None = None,
        keep: Callable[[Mapping[str, Tensor]], object] = lambda tensors: None,
        read_state: Callable[[], Mapping[str, Tensor]] = dict,
        skips: Callable[[int], Collection[int]] = lambda step: (),
    ) -> None:
        self.gradient = gradient or FlatGradient(worker.gradients)
        self.worker, self.client, self.optimizer, self.replicas = worker, client, optimizer, replicas
        self.start_step, self.total_steps = start_step, total_steps
        self.is_last = self.has_ended = False
        self.factors: Sequence[float] = ()
        self.settle: Callable[[], object] = lambda: None
        self._batches, self._clip, self._report = batches, clip, report
        self.agree = agree
        self._keep, self._read_state, self._skips = keep, read_state, skips
        self._skipped: set[int] | None = None  # slices that have the gradients of all steps since the last push
        self._batch: B | None = None
        self._loss: float | None = None

    @property
    def replica(self) -> int:
        """The replica's number."""
        return self.client.replica

    @property
    def clips_gradients(self) -> bool:
        """Whether gradients are scaled, so that those of several steps must not be added up in `worker.gradients`."""
        return self._clip is not None

    def make_update(self, number: int, step: int) -> Update:
        """Return an update that this replica makes itself, at the rate of a step. number: of the update, from 1."""
        progress = min(1.0, step / self.total_steps) if self.total_steps else 0.0
        update = Update(number, replica=self.replica, progress=progress)
        return update.at_factors(self.factors) if self.factors else update

    def run(self, steps: Iterable[int]) -> None:
        """Go through the steps of a method's `train`, and compute their gradients."""
        for step in steps:
            self.compute_gradient(step)

    def end(self, steps: Iterator[int]) -> None:
        """End the training by a method before the step that it has yielded last."""
        self.has_ended = True
        if next(steps, None) is not None:
            raise RuntimeError(f"the method of {self.client.name} goes on after the end")

    def load_batch(self, step: int) -> bool:
        """Load the batch of a step, for methods that may skip steps; return whether there is one."""
        self._batch = self._batches(step)
        return self._batch is not None

    def steps(self) -> Iterator[int]:
        """Yield one step after the other, each with its batch loaded, as long as there are batches."""
        step = self.start_step
        batch = self._batches(step)
        while batch is not None:
            following = self._batches(step + 1)
            self._batch, self.is_last = batch, following is None
            yield step
            batch, step = following, step + 1

    def keep(self, tensors: Mapping[str, Tensor]) -> None:
        """Save these tensors with the worker from now on; after a restart they are filled as they were saved."""
        self._keep(tensors)

    def make_state(self) -> dict[str, Tensor]:
        """Return the state of the user's optimizer to begin with: as the run resumes, or its first one."""
        first, resumed = self.optimizer.init_state(self.worker.values), self._read_state()
        return {name: resumed.get(name, tensor) for name, tensor in first.items()}

    def may_fetch_changes(self, step: int) -> bool:
        """Return whether a fetch before this step may bring changes alone, as the worker has older values.

        Before the first step it has only if the run begins with it.
        """
        return step > self.start_step or step == 0

    def compute_gradient(self, step: int) -> None:
        """Add the gradient of the step's batch to `worker.gradients`, but for slices that have it already.

        Raises Diverged if the loss is not finite.
        """
        assert self._batch is not None
        skipped = set(self._skips(step))
        pieces = [piece for piece in self.client.slices if piece.number in skipped] if skipped else []
        restores = [self.gradient.save_between(piece.start, piece.stop) for piece in pieces]
        self._loss = self.worker.step(self._batch, step)
        demand_finite_loss(self.client.name, step, self._loss)
        if self._clip is not None:
            self._clip(step)
        for restore in restores:
            restore()
        self._skipped = skipped if self._skipped is None else self._skipped & skipped

    def take_skipped(self) -> set[int]:
        """Return the numbers of the slices that get nothing of the steps since this was called last."""
        skipped, self._skipped = self._skipped or set(), None
        return skipped

    def finish_step(self, step: int, settle: Callable[[], object] = lambda: None) -> None:
        """Report that a step is over.

        settle: waits for values that contain the step, if a method fetches them; otherwise an evaluation is of the
        values that the worker computes on.
        """
        assert self._batch is not None
        self.settle = settle
        if self._report is not None:
            self._report(step, self._loss, len(self._batch))


def demand_finite_loss(worker: str, step: int, loss: float | None) -> None:
    """Raise Diverged if a loss is known and not finite."""
    if loss is None or math.isfinite(loss):
        return
    fix = "use a smaller rate: a tenth of --lr, say" if step else "check the data and the model: no step was taken yet"
    raise Diverged("E702", f"the loss of {worker} at step {step} is {loss}", fix=fix)
