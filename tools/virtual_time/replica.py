"""`SharedModel`, on which all replicas of a run compute, and `VirtualReplica`: one of them, with its own parameters.

The model exists once: before a step it is given the replica's parameters and the memory for its gradient. A gradient
has memory only from the step that computes it to the push that gives it away, since a thousand replicas wait most of
the time.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ...models.sample_stream import SampleStream
from ...models.task import Data, Task
from ...runtime.worker.flat_gradient import FlatGradient
from ...runtime.worker.uncut_worker import UncutWorker
from ..samples.dataset_samples import Samples
from ..task.load_task import build_model
from ..task.scores import Scores, score_uncut


class PassingGradient(FlatGradient):
    """A gradient [size] that has memory only while it holds something.

    keeps: whether it keeps its memory, as somebody uses that as it is.
    """

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__(torch.empty(0, dtype=dtype))
        self.size, self.keeps = size, False

    def keep(self) -> Tensor:
        """Return memory [size], zero now, that the gradient has from now on."""
        self.keeps = True
        return self.fill()

    def fill(self) -> Tensor:
        """Return the memory [size]; zero if there was none."""
        if not self.flat.numel():
            self._use(torch.zeros(self.size, dtype=self.flat.dtype))
        return self.flat

    def zero(self, *, apart: bool = False) -> "PassingGradient":
        """Set all elements to zero: somebody may still read the memory, which is not written again."""
        if self.keeps:
            self.flat.zero_()
        else:
            self._use(torch.empty(0, dtype=self.flat.dtype))
        return self

    def descend_and_accumulate(self, values: Tensor, rate: float, accrued: FlatGradient) -> None:
        """Take a step, add this gradient to `accrued`, and set it to zero; see `FlatGradient`."""
        super().descend_and_accumulate(values, rate, accrued)
        self.zero()

    def zeros_like(self) -> FlatGradient:
        """Make another gradient of zeros, which keeps its memory."""
        return FlatGradient(torch.zeros(self.size, dtype=self.flat.dtype))

    def _use(self, flat: Tensor) -> None:
        self._flat = flat
        self.runs = [slice(0, flat.numel())] if flat.numel() else []


class SharedModel:
    """The model of a task, on which replicas compute in turn. initial: the parameters [n] that training begins with."""

    def __init__(self, task: Task, *, seed: int) -> None:
        self.task, self.seed = task, seed
        self._worker = UncutWorker(build_model(task, seed=seed), task.loss, seed=seed)
        self._parameters = list(self._worker.parameters.values())
        self.initial = self._worker.values.clone()
        self.buffers = list(self._worker.model.buffers())

    def add_gradient(self, values: Tensor, gradient: Tensor, batch: Data, *, step: int, seed: int) -> float:
        """Add the gradient of a batch's mean loss, at some parameters [n], to `gradient` [n]; return the loss.

        seed: of the random numbers that the model draws.
        """
        worker = self._worker
        worker.move(values)
        worker.gradients, worker.seed = gradient, seed
        for parameter, view in zip(self._parameters, worker.views(gradient), strict=True):
            if parameter.dtype == gradient.dtype:
                parameter.grad = view
        return worker.step(batch, step)

    def score(self, values: Tensor, samples: Samples, batch: int) -> Scores:
        """Return the scores of parameters [n]."""
        self._worker.move(values)
        return score_uncut(self._worker, self.task, samples, batch)


class NumberedBatch:
    """A batch of a stream that is read when it is computed: many replicas hold one each for long."""

    def __init__(self, samples: Samples, stream: SampleStream, number: int) -> None:
        self.number = number
        self._samples, self._stream = samples, stream

    def __len__(self) -> int:
        return self._stream.batch

    def read(self) -> Data:
        """Read its samples."""
        return self._samples.rows(self._stream.indices(self.number))


class VirtualReplica:
    """One replica's parameters and gradients: what a `TrainingLoop` trains.

    draw: returns the seconds of a step. clock, sleep: of the world that it lives in. early: whether the gradient is
    computed as the step begins, not when it ends; the parameters differ where others change them meanwhile.
    before_step: is called before each step. step_s: what each step took.
    """

    def __init__(
        self,
        model: SharedModel,
        number: int,
        draw: Callable[[], float],
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], object],
        early: bool = False,
    ) -> None:
        self.number = number
        self.step_s: list[float] = []
        self.values = model.initial.clone()
        self.gradient = PassingGradient(self.values.numel(), self.values.dtype)
        self.before_step: Callable[[], object] = lambda: None
        self._model, self._draw, self._clock, self._sleep, self._early = model, draw, clock, sleep, early
        self._buffers = [buffer.clone() for buffer in model.buffers]

    @property
    def gradients(self) -> Tensor:
        """The gradients as one flat tensor [n], which stays where it is from now on."""
        return self.gradient.keep()

    def move(self, values: Tensor) -> None:
        """Keep the parameters in another flat tensor [n] from now on."""
        self.values = values

    def step(self, batch: NumberedBatch, step: int) -> float:
        """Add the gradient of the batch's mean loss; return the loss."""
        self.before_step()
        began_s = self._clock()
        ends_s = began_s + self._draw()
        loss = self._compute(batch, step) if self._early else None
        self._sleep(max(0.0, ends_s - self._clock()))
        self.step_s.append(self._clock() - began_s)
        return self._compute(batch, step) if loss is None else loss

    def _compute(self, batch: NumberedBatch, step: int) -> float:
        for shared, own in zip(self._model.buffers, self._buffers, strict=True):
            shared.copy_(own)
        seed = self._model.seed + self.number
        loss = self._model.add_gradient(self.values, self.gradient.fill(), batch.read(), step=step, seed=seed)
        for shared, own in zip(self._model.buffers, self._buffers, strict=True):
            own.copy_(shared)
        return loss
