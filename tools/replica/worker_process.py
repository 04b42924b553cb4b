"""`WorkerProcess`: what one worker of a run does, from its setup to its result, whatever it computes on.

Messages to the launcher: "connected", "ready" (to train), "progress", "evaluated", "trained", "state_file". From the
launcher: "start_training" (to all workers at once, so that nobody's clock counts the setup of others) and
"all_trained" (with the path of the final checkpoint in the folder of the run and the batches of all replicas).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from ...ps.client.client import Client
from ...ps.client.replay_limit import choose_replay_bytes
from ...ps.methods.training_loop import Batches, TrainingLoop
from ...runtime.channel.channel import Channel
from ...runtime.channel.mailbox import Mailbox
from ...runtime.channel.message import LAUNCHER, Message
from ...runtime.hosts.heartbeat import RoleProgress
from ...runtime.hosts.versions import read_memory
from ..job.process_specs import WorkerSpec
from ..leases.batch_assignment import REPLICA_TIMEOUT_S
from ..run_folder import buffer_path
from ..unfinished.unfinished_run import number_buffers
from .local_state import LocalState
from .model_part import CutModelPart, ModelPart, load_masters, read_optimizer_state
from .progress_log import ProgressLog
from .replica_state import BufferFile, ReplicaStateWriter, report_write_failure, write_final_state

MESSAGE_TIMEOUT_S = 600.0  # for a message of a peer; the launcher finds a dead or hanging peer long before


class WorkerProcess(ABC):
    """One machine's part of one replica. Replica 0 also writes what the shards do not have.

    leases: whether batches are leased, so that the launcher wants to know which steps are durable. describe: see
    `ProgressLog`.
    """

    def __init__(
        self,
        channel: Channel,
        spec: WorkerSpec,
        progress: RoleProgress,
        build_part: Callable[[Mailbox], ModelPart],
        *,
        leases: bool,
        describe: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self._channel, self._spec, self._training, self._progress = channel, spec, spec.training, progress
        self._leases, self._describe = leases, describe or dict[str, Any]
        self._mailbox = Mailbox(channel, timeout_s=MESSAGE_TIMEOUT_S)
        self._send("connected", {})
        self._model_part = build_part(self._mailbox)
        self._client = self._build_client()
        state = number_buffers(self._model_part.state(), self._model_part.buffers()) if spec.replica == 0 else None
        self._send("ready", {"machine": spec.machine, "state": msgspec.to_builtins(state)})
        self._mailbox.wait([(LAUNCHER, "start_training", 0, 0, 0)], timeout_s=MESSAGE_TIMEOUT_S)
        self._log = ProgressLog(
            channel,
            progress,
            self._training,
            lambda: self._mailbox.waited_s,
            describe=describe,
            describe_status=self._describe_status,
        )
        self._reading_s = self._leasing_s = 0.0
        self._local_state, self._buffer_file = self._restore_local_state()
        self._state_writer = ReplicaStateWriter(
            self._mailbox, self._training, spec.machine, self._model_part.state, start_step=spec.start_step
        )
        self._steps_done = spec.start_step
        self._result: dict[str, Any] = {}

    @abstractmethod
    def count_reached(self, step: int) -> int:
        """Return about how many batches all replicas together have computed by the end of a step."""

    @abstractmethod
    def evaluate_due(self, step: int, settle: Callable[[], object]) -> None:
        """Evaluate after a step, if this worker does and that is due. settle: as of `finish_step`."""

    def _build_client(self) -> Client:
        """Return the client; that of replica 0 has put the values that training begins with."""
        spec, values = self._spec, self._model_part.values
        load_masters(self._training, spec.regions, values)
        client = Client(
            self._mailbox,
            spec.slices,
            values,
            local_rate=spec.method.local_rate(spec.optimizer),
            replica=spec.replica,
            initial=spec.incarnation == 0 and spec.start_step == 0,
            compression=spec.compression,
            replay_bytes=choose_replay_bytes(read_memory(), self._training.replicas * spec.machines),
        )
        if spec.replica == 0:
            client.put(self._training.version, self._read_optimizer_state())
        return client

    def _read_optimizer_state(self) -> dict[str, Tensor]:
        """Return what the shards' optimizer remembered of this machine's parameters where the run resumes."""
        return read_optimizer_state(self._training, self._spec.regions, self._model_part.values)

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

    def _build_loop(
        self, batches: Batches[Any], start_step: int, skips: Callable[[int], Collection[int]] = lambda step: ()
    ) -> TrainingLoop[Any]:
        """Return what the method trains on until there is no batch for now."""
        model_part, max_norm = self._model_part, self._training.clip_norm

        def read_batch(step: int) -> Any:
            began, waited_s = time.perf_counter(), self._mailbox.waited_s
            batch = batches(step)
            leasing_s = self._mailbox.waited_s - waited_s  # it waits for messages here only where it asks for batches
            self._leasing_s += leasing_s
            self._reading_s += time.perf_counter() - began - leasing_s
            return batch

        loop: TrainingLoop[Any] = TrainingLoop(
            model_part,
            self._client,
            self._spec.optimizer,
            read_batch,
            replicas=self._training.replicas,
            start_step=start_step,
            total_steps=0 if self._training.is_open_ended else self._training.steps,
            clip=(lambda step: model_part.clip(max_norm, step)) if max_norm else None,
            agree=model_part.agree,
            report=lambda step, loss, count: self._finish_step(step, loss, loop.settle, last=loop.is_last),
            gradient=model_part.gradient,
            keep=self._local_state.keep if self._local_state is not None else lambda tensors: None,
            read_state=self._read_optimizer_state,
            skips=skips,
        )
        return loop

    def _describe_status(self) -> dict[str, Any]:
        """Return for what this worker has waited, in seconds, and how many of its pushes are under way.

        Its waits for peers are all others, those of evaluations included.
        """
        client = self._client.statistics()
        shards_s = client["fetch_blocked_s"] + client["push_blocked_s"]
        waited = {"data": self._reading_s, "leases": self._leasing_s, "shards": shards_s}
        peers_s = max(0.0, self._mailbox.waited_s - self._leasing_s - shards_s)
        waited = {what: round(seconds, 3) for what, seconds in (waited | {"peers": peers_s}).items()}
        return {"waited": waited, "unacknowledged": self._client.in_flight}

    def _finish_step(self, step: int, loss: float | None, settle: Callable[[], object], *, last: bool) -> None:
        """Log a step, and save and evaluate if that is due."""
        reached = self.count_reached(step)
        acknowledged = self._client.durable_step if self._leases else None
        self._log.record_step(step, loss, reached=reached, acknowledged=acknowledged, last=last)
        if self._local_state is not None:
            self._local_state.save_due(step)
        if self._buffer_file is not None:
            self._buffer_file.save()
        if self._spec.replica == 0:
            self._state_writer.write_due(reached)
        self._steps_done = step + 1
        self.evaluate_due(step, settle)

    def _end_training(self) -> None:
        """Save what this worker alone has, and note what the training took, which is over as far as is known."""
        spans = self._model_part.worker.trace.complete_steps() if isinstance(self._model_part, CutModelPart) else []
        self._result = {
            "seconds": self._log.training_seconds(),
            "links": self._log.training_traffic(),
            "spans": spans,
        }
        if self._buffer_file is not None:
            self._buffer_file.save(now=True)
        self._progress.value = None  # others may take long; the launcher must not take the wait for being stuck

    def _fetch_trained(self) -> str:
        """Wait until all replicas have trained, and fetch what the shards hold; return where the checkpoint shall be.

        That is its path in the folder of the run.
        """
        self._send("trained", {"steps": self._steps_done, **self._describe()})
        message = self._mailbox.wait([(LAUNCHER, "all_trained", 0, 0, 0)], timeout_s=REPLICA_TIMEOUT_S)
        self._client.fetch()
        self._client.wait()
        self._log.mark_all_trained(message.body["batches"])
        return str(message.body["path"])

    def _write_final_state(self, path: str) -> None:
        """Write this worker's part of the final checkpoint, which the launcher then has."""
        write_final_state(self._channel, self._training.folder, path, self._spec.machine, self._model_part.state)
        self._mailbox.wait([(LAUNCHER, "kept", 0, 0, 0)], timeout_s=REPLICA_TIMEOUT_S)

    def _complete_result(self) -> dict[str, Any]:
        """Return the worker's result."""
        return {
            **self._result,
            "steps": self._log.steps,
            "step_s": self._log.median_work_s(),
            "client": self._client.statistics(),
            "links": self._result["links"] | self._client.peer_traffic,
        }

    def _send(self, kind: str, body: dict[str, Any]) -> None:
        self._channel.send(LAUNCHER, Message(kind, body=body))
