"""`WorkerProcess`: what one worker of a run does, from its setup to its result."""

from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ...models.task import Data
from ...ps.client.client import Client
from ...ps.methods.training_loop import TrainingLoop
from ...runtime.channel.channel import Channel
from ...runtime.channel.mailbox import Mailbox
from ...runtime.channel.message import LAUNCHER, Message
from ...runtime.hosts.heartbeat import RoleProgress
from ..job.process_specs import WorkerSpec
from ..leases.batch_assignment import REPLICA_TIMEOUT_S, BatchAssignment, LeasedBatches, RoundRobinBatches
from ..leases.batch_reader import make_reader
from ..run_folder import buffer_path
from ..samples.dataset_samples import Samples
from ..task.load_task import load_task, read_split, read_training
from ..unfinished.unfinished_run import number_buffers
from .local_state import LocalState
from .model_part import CutModelPart, ModelPart, UncutModelPart, read_optimizer_state
from .progress_log import ProgressLog
from .replica_state import (
    BufferFile,
    ReplicaStateWriter,
    report_write_failure,
    save_best_state,
    write_final_state,
)

MESSAGE_TIMEOUT_S = 600.0  # for a message of a peer; the launcher finds a dead or hanging peer long before


class WorkerProcess:
    """One machine's part of one replica. Replica 0 also evaluates, and writes what the shards do not have.

    Messages to the launcher: "connected", "ready" (to train), "progress", "evaluated", "trained", "state_file". From
    the launcher: "start_training" (to all workers at once, so that nobody's clock counts the setup of others) and
    "all_trained" (to replica 0, with the path of the final checkpoint in the folder of the run and the batches of all
    replicas). After an evaluation it may wait for a verdict (tools/selection/verdicts.py).
    """

    def __init__(self, channel: Channel, spec: WorkerSpec, progress: RoleProgress) -> None:
        self._channel, self._spec, self._training, self._progress = channel, spec, spec.training, progress
        self._task = load_task(self._training.task)
        is_cut, seed, parts = bool(spec.program), self._training.seed, self._training.parts or None
        samples = read_training(self._task, seed=seed, parts=parts, one_shape=is_cut)
        self._tests = read_split(self._task, "test", one_shape=is_cut) if spec.replica == 0 else None
        self._mailbox = Mailbox(channel, timeout_s=MESSAGE_TIMEOUT_S)
        self._send("connected", {})
        self._model_part = self._build_model_part()
        self._client = self._build_client()
        state = number_buffers(self._model_part.state(), self._model_part.buffers()) if spec.replica == 0 else None
        self._send("ready", {"machine": spec.machine, "state": msgspec.to_builtins(state)})
        self._mailbox.wait([(LAUNCHER, "start_training", 0, 0, 0)], timeout_s=MESSAGE_TIMEOUT_S)
        self._log = ProgressLog(channel, progress, self._training, lambda: self._mailbox.waited_s)
        self._local_state, self._buffer_file = self._restore_local_state()
        self._state_writer = ReplicaStateWriter(
            self._mailbox, self._training, spec.machine, self._model_part.state, start_step=spec.start_step
        )
        self._assignment = self._build_assignment()
        self._steps_done = self._assignment.start_step
        self._reader = make_reader(self._training, samples, self._assignment, spec.replica)

    def run(self) -> dict[str, Any]:
        """Train until nothing is left to compute; return the worker's result."""
        more = True
        while more:
            self._spec.method.train(self._build_loop())
            seconds, traffic = self._log.training_seconds(), self._log.training_traffic()
            if self._buffer_file is not None:
                self._buffer_file.save(now=True)
            self._progress.value = None  # others may take long; the launcher must not take the wait for being stuck
            more = self._assignment.wait_for_more()
        self._reader.close()
        if self._tests is not None:
            self._finish(self._tests)
        return {
            "seconds": seconds,
            "steps": self._log.steps,
            "step_s": self._log.median_work_s(),
            "client": self._client.statistics(),
            "links": traffic | self._client.peer_traffic,
            "spans": self._model_part.worker.trace.complete_steps()
            if isinstance(self._model_part, CutModelPart)
            else [],
        }

    def _build_model_part(self) -> ModelPart:
        if self._spec.program:
            return CutModelPart(self._spec, self._task, self._mailbox)
        return UncutModelPart(self._training, self._task, self._training.seed + self._spec.replica)

    def _build_client(self) -> Client:
        """Return the client; that of replica 0 has put the values that training begins with."""
        spec, values = self._spec, self._model_part.values
        client = Client(
            self._mailbox,
            spec.slices,
            values,
            local_rate=spec.method.local_rate(spec.optimizer),
            replica=spec.replica,
            initial=spec.incarnation == 0 and spec.start_step == 0,
            compression=spec.compression,
        )
        if spec.replica == 0:
            state = read_optimizer_state(self._training, spec.regions, values)
            client.put(self._training.version, state)
        return client

    def _restore_local_state(self) -> tuple[LocalState | None, BufferFile | None]:
        """Return what saves the state that this worker has alone: with recovery points, or its buffers now and then."""
        spec, buffers = self._spec, self._model_part.buffers()
        if spec.method.lock_step:
            return LocalState(spec, self._mailbox, buffers, self._client), None
        path = buffer_path(Path(self._training.folder), spec.replica, spec.machine)
        on_saved = partial(self._send, "buffers_saved", {"replaced": [path.name]})
        on_failure = partial(report_write_failure, self._channel)
        file = BufferFile(buffers, path, restarted=spec.incarnation > 0, on_saved=on_saved, on_failure=on_failure)
        return None, file

    def _build_assignment(self) -> BatchAssignment:
        spec = self._spec
        if spec.method.leases_batches:
            in_order = not self._training.parts
            start_step = spec.method.choose_start_step(self._client, spec.start_step)
            return LeasedBatches(self._mailbox, start_step, lambda: self._client.durable_step, in_order=in_order)
        return RoundRobinBatches(self._training, spec.replica, spec.start_step)

    def _build_loop(self) -> TrainingLoop[Data]:
        """Return what the method trains on until the assignment has no batch for now."""
        model_part, max_norm = self._model_part, self._training.clip_norm
        loop: TrainingLoop[Data] = TrainingLoop(
            model_part,
            self._client,
            self._spec.optimizer,
            self._reader.read,
            replicas=self._training.replicas,
            start_step=self._assignment.start_step,
            total_steps=0 if self._training.is_open_ended else self._training.steps,
            clip=(lambda step: model_part.clip(max_norm, step)) if max_norm else None,
            agree=model_part.agree,
            report=lambda step, loss, count: self._finish_step(step, loss, last=loop.is_last),
            gradient=model_part.gradient,
            keep=self._local_state.keep if self._local_state is not None else lambda tensors: None,
            skips=self._assignment.skips,
        )
        return loop

    def _finish_step(self, step: int, loss: float | None, *, last: bool) -> None:
        """Log a step, and save and evaluate if that is due."""
        reached = self._assignment.count_reached(step)
        acknowledged = self._client.durable_step if self._spec.method.leases_batches else None
        self._log.record_step(step, loss, reached=reached, acknowledged=acknowledged, last=last)
        if self._local_state is not None:
            self._local_state.save_due(step)
        if self._buffer_file is not None:
            self._buffer_file.save()
        if self._spec.replica == 0:
            self._state_writer.write_due(reached)
        self._steps_done = step + 1
        if self._log.is_evaluation_due():
            self._evaluate_in_turn(step)

    def _evaluate_in_turn(self, step: int) -> None:
        """Evaluate if this is replica 0; the others go on, or wait for what follows if all may have to end together."""
        if self._tests is not None:
            self._evaluate(step, self._tests)
        elif self._training.awaits_verdicts and not self._spec.method.leases_batches:
            self._log.skip_evaluation()
            self._await_verdict(step)

    def _evaluate(self, step: int, tests: Samples) -> None:
        batch = self._training.micro_batch
        self._log.record_evaluation(step, lambda: self._model_part.score(self._task, tests, batch))
        if self._training.awaits_verdicts:
            self._await_verdict(step)

    def _await_verdict(self, step: int) -> None:
        """Do what the launcher makes of an evaluation: save the weights, or end one step later, as all replicas do."""
        self._channel.send(LAUNCHER, Message("await_verdict", step))
        progress, self._progress.value = self._progress.value, None  # others may take long to evaluate
        verdict = self._mailbox.wait([(LAUNCHER, "verdict", step, 0, 0)], timeout_s=REPLICA_TIMEOUT_S).body
        self._progress.value = progress
        if verdict["is_best"] and self._spec.replica == 0:
            state = [*self._model_part.trained(self._spec.regions), *self._model_part.state()]
            save_best_state(self._channel, self._training.folder, self._spec.machine, state)
        if verdict["must_stop"]:
            self._assignment.end_after(step + 1)

    def _finish(self, tests: Samples) -> None:
        """When all replicas have pushed their last gradients, evaluate what the shards hold, and save the rest."""
        self._send("trained", {})
        message = self._mailbox.wait([(LAUNCHER, "all_trained", 0, 0, 0)], timeout_s=REPLICA_TIMEOUT_S)
        self._client.fetch()
        self._client.wait()
        self._log.mark_all_trained(message.body["batches"])
        self._evaluate(self._steps_done, tests)
        folder, path = self._training.folder, message.body["path"]
        write_final_state(self._channel, folder, path, self._spec.machine, self._model_part.state)
        self._mailbox.wait([(LAUNCHER, "kept", 0, 0, 0)], timeout_s=REPLICA_TIMEOUT_S)

    def _send(self, kind: str, body: dict[str, Any]) -> None:
        self._channel.send(LAUNCHER, Message(kind, body=body))
