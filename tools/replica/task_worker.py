"""`TaskWorker`: a worker that trains a task: it reads its batches, computes on them and, as replica 0, evaluates."""

from collections.abc import Callable
from typing import Any

from ...runtime.channel.channel import Channel
from ...runtime.channel.mailbox import Mailbox
from ...runtime.channel.message import LAUNCHER, Message
from ...runtime.hosts.heartbeat import RoleProgress
from ..job.process_specs import WorkerSpec
from ..leases.batch_assignment import REPLICA_TIMEOUT_S, BatchAssignment, LeasedBatches, RoundRobinBatches
from ..leases.batch_reader import make_loader, make_reader
from ..samples.dataset_samples import Samples
from ..samples.read_samples import read_samples, read_split
from ..task.load_task import load_task
from .model_part import CutModelPart, ModelPart, UncutModelPart
from .replica_state import save_best_state
from .worker_process import WorkerProcess


class TaskWorker(WorkerProcess):
    """One machine's part of one replica. After an evaluation it may wait for a verdict (tools/selection)."""

    def __init__(self, channel: Channel, spec: WorkerSpec, progress: RoleProgress) -> None:
        training, is_cut = spec.training, bool(spec.programs)
        self._task = load_task(training.task)
        samples = read_samples(self._task, "train", seed=training.seed, parts=training.parts or None, one_shape=is_cut)
        self._tests = read_split(self._task, "test", one_shape=is_cut) if spec.replica == 0 else None
        loader = make_loader(training, samples)
        super().__init__(channel, spec, progress, self._build_part, leases=spec.method.leases_batches)
        self._assignment = self._build_assignment()
        self._steps_done = self._assignment.start_step
        self._reader = make_reader(training, loader, self._assignment, spec.replica)

    def run(self) -> dict[str, Any]:
        """Train until nothing is left to compute; return the worker's result."""
        more = True
        while more:
            loop = self._build_loop(self._reader.read, self._assignment.start_step, self._assignment.skips)
            loop.run(self._spec.method.train(loop))
            self._end_training()
            more = self._assignment.wait_for_more()
        self._reader.close()
        if self._tests is not None:
            path = self._fetch_trained()
            self._evaluate(self._steps_done, self._tests)
            self._write_final_state(path)
        return self._complete_result()

    def count_reached(self, step: int) -> int:
        """Return about how many batches all replicas together have computed by the end of a step."""
        return self._assignment.count_reached(step)

    def evaluate_due(self, step: int, settle: Callable[[], object]) -> None:
        """Evaluate if this is replica 0; the others go on, or wait for what follows if all may have to end together."""
        if not self._log.is_evaluation_due():
            return
        if self._tests is not None:
            settle()
            self._evaluate(step, self._tests)
        elif self._training.awaits_verdicts and not self._spec.method.leases_batches:
            self._log.skip_evaluation()
            self._await_verdict(step, due=self._log.last_due(step))

    def _build_part(self, mailbox: Mailbox) -> ModelPart:
        if self._spec.programs:
            return CutModelPart(self._spec, self._task, mailbox)
        return UncutModelPart(self._training, self._task, self._training.seed + self._spec.replica)

    def _build_assignment(self) -> BatchAssignment:
        spec = self._spec
        if spec.method.leases_batches:
            in_order = not self._training.parts
            start_step = spec.method.choose_start_step(self._client, spec.start_step)
            return LeasedBatches(self._mailbox, start_step, lambda: self._client.durable_step, in_order=in_order)
        return RoundRobinBatches(self._training, spec.replica, spec.start_step)

    def _evaluate(self, step: int, tests: Samples) -> None:
        batch = self._training.micro_batch
        self._log.record_evaluation(step, lambda: self._model_part.score(self._task, tests, batch))
        if self._training.awaits_verdicts:
            self._await_verdict(step)

    def _await_verdict(self, step: int, *, due: int | None = None) -> None:
        """Do what the launcher makes of an evaluation: save the weights, or end one step later, as all replicas do.

        due: the step after which replica 0 had to evaluate, by default this one.
        """
        self._channel.send(LAUNCHER, Message("await_verdict", step, body={} if due is None else {"due": due}))
        progress, self._progress.value = self._progress.value, None  # others may take long to evaluate
        verdict = self._mailbox.wait([(LAUNCHER, "verdict", step, 0, 0)], timeout_s=REPLICA_TIMEOUT_S).body
        self._progress.value = progress
        if verdict["is_best"] and self._spec.replica == 0:
            state = [*self._model_part.trained(self._spec.regions), *self._model_part.state()]
            save_best_state(self._channel, self._training.folder, self._spec.machine, state)
        if verdict["must_stop"]:
            self._assignment.end_after(step + 1)
