"""`ScriptWorker`: the worker of a replica whose loop is the user's own: each `take_step` is one step of the method."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import msgspec
from torch import nn

from ...errors import BadInput
from ...runtime.channel.channel import Channel
from ...runtime.hosts.heartbeat import RoleProgress
from ..job.process_specs import WorkerSpec
from ..job.stream_position import LOOP
from ..replica.model_part import UserModelPart
from ..replica.worker_process import WorkerProcess
from .loop_counts import LoopCounts

STEP = range(1)  # stands for the batch of a step, of which nobody but the user knows anything


class ScriptWorker(WorkerProcess):
    """Trains a user's model, whose parameters it makes views of its own and fills as the method says.

    The method goes from step to step: between two of them the user's code runs, and computes a gradient. trained: names
    of the parameters that it trains. counts: of the loop, which is told of its steps.
    """

    def __init__(
        self,
        channel: Channel,
        spec: WorkerSpec,
        progress: RoleProgress,
        model: nn.Module,
        trained: Collection[str],
        counts: LoopCounts,
    ) -> None:
        self.counts = counts
        self._loss: float | None = None
        part = UserModelPart(model, trained, spec.training.initial)
        super().__init__(channel, spec, progress, lambda _: part, leases=False, describe=self._describe_loop)
        self._part, self._parameters = part, list(part.worker.parameters.values())
        # Shards know best what a lost replica has pushed; where all have gone back, they know no more than that.
        joins = spec.incarnation and not spec.method.lock_step
        self.start_step = self._client.join(spec.start_step) if joins else spec.start_step
        self._steps_taken = self._steps_done = self.start_step
        self._is_in_step = False
        counts.begin_at(self.start_step, spec.loop)
        self._loop = self._build_loop(lambda step: STEP, self.start_step)
        self._views = part.worker.views(self._loop.gradient.flat)
        self._steps: Iterator[int] = spec.method.train(self._loop)
        self.has_finished = False
        self._go_on()

    def take_step(self, factors: Sequence[float]) -> None:
        """Hand over the gradients, and wait for the parameters of the next step.

        factors: of the learning rate, one for all groups of parameters or one each.

        Where the script only repeats a step that it took before, nothing happens.
        """
        if self.has_finished:
            facts = "the script calls optimizer.step() after run.finish(), which ended the training"
            raise BadInput("E363", facts, fix="call run.finish() after the last step, or leave it out")
        if self.counts.take_step():
            return
        for parameter, view in zip(self._parameters, self._views, strict=True):
            if parameter.grad is not None:
                view.add_(parameter.grad)
        self._loop.factors = self._client.factors = factors
        self._steps_taken += 1
        self._is_in_step = True
        self._go_on()
        self._is_in_step = False

    def report(self, loss: float | None, point: dict[str, Any] | None) -> None:
        """Take note of the loss of the present step, and of scores, which replica 0 alone reports."""
        self._loss = loss if loss is not None else self._loss
        if point is not None and self._spec.replica == 0:
            self._log.record_point(self._steps_taken, point)

    def finish(self) -> dict[str, Any]:
        """End the training of this replica, wait for the others, and fetch what was trained; return the result."""
        self._loop.end(self._steps)
        self._end_training()
        path = self._fetch_trained()
        self.has_finished = True
        if self._spec.replica == 0:
            self._write_final_state(path)
        return self._complete_result()

    def count_reached(self, step: int) -> int:
        """Return the batches computed if all replicas have made as many steps as this one."""
        return (step + 1) * self._training.replicas

    def evaluate_due(self, step: int, settle: Callable[[], object]) -> None:
        """Do nothing: the user's code evaluates when it likes."""

    def _go_on(self) -> None:
        """Take the method to the step whose gradient it needs next."""
        next(self._steps)
        self._part.worker.copies.refresh(self._part.values)
        self._progress.value = None  # the user's code may now test or save for as long as it likes

    def _finish_step(self, step: int, loss: float | None, settle: Callable[[], object], *, last: bool) -> None:
        is_second = step == self.start_step + 1  # by then it is known how often schedulers are called for a step
        super()._finish_step(step, self._loss, settle, last=last or is_second)
        self._loss = None

    def _describe_loop(self) -> dict[str, Any]:
        scheduled = self._steps_taken - self._is_in_step  # schedulers are called after a step
        return {LOOP: msgspec.to_builtins(self.counts.describe(scheduled))}
