"""`TrainingSupervisor`: follows a run of replicas and shards from its roles to its results, and replaces lost replicas.

A lost replica is restarted under new names: it fetches the parameters from the shards and continues after the last step
that it is known to have completed, while the other replicas train. Steps since its last heartbeat, at most half a
second of them, are computed again. Its buffers are those that its workers saved last (replica_state.py).

Where batches are leased (lease_server.py), the batches of a lost replica go to whoever asks next, nobody waits for it
when all else is done, and replicas join and leave as the user requests (scale_requests.py).
"""

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from ...ps.checkpoint.manifest import StateFile
from ...runtime.channel.message import Message
from ...runtime.launcher.launcher import Launcher, Role
from ...runtime.launcher.liveness import Loss
from ..job.job import Job, make_worker_spec
from ..job.process_specs import worker_name
from ..run_folder import CHECKPOINT
from .checkpoint_sets import CheckpointSets
from .elastic_replicas import ElasticReplicas
from .lease_server import WorkerId
from .progress_log import parse_steps_done
from .roles import WORKER
from .scale_requests import ScaleRequests
from .shard_supervisor import ShardSupervisor
from .supervision import OnNotice, OnProgress, RestartLog, replica_group


class TrainingSupervisor:
    """Follows one run.

    Args:
        on_progress: called with the progress of replica 0.
        on_notice: called with a sentence for every restart, and for every replica that joins or leaves.
        requests: for more or fewer replicas.

    Attributes:
        results: what each worker returned, by the name of its first incarnation.
        state_files: files with the buffers of replica 0, which the shards do not have.
        curve: the learning curve, {"seconds", "samples", "test_accuracy"} for each evaluation of replica 0.
        losses: (samples, loss) at each progress report of replica 0.
    """

    def __init__(
        self, job: Job, *, on_progress: OnProgress, on_notice: OnNotice, requests: ScaleRequests | None = None
    ) -> None:
        self._job, self._on_progress, self._on_notice = job, on_progress, on_notice
        self._restarts = RestartLog(job.config.restarts)
        self._checkpoints = CheckpointSets(job, on_notice=on_notice)
        self._shards = ShardSupervisor(job, self._restarts, on_notice=on_notice)
        self._elastic = ElasticReplicas(job, on_notice=on_notice, requests=requests)
        self._start_s = time.monotonic()
        self._start_steps = Counter[int]()  # of the current incarnation of each replica
        self._steps_done: dict[WorkerId, int] = {}  # as the workers reported them
        self._clock_offsets_s = dict[int, float]()  # seconds of the run when the clock of a restarted replica began
        self._departed: list[int] = []  # replicas that are gone without having told the shards
        self._workers: dict[str, WorkerId] = {}  # by current name
        self._trained: set[WorkerId] = set()
        self._ready: set[str] = set()
        self._training: set[str] = set()  # workers that were told to start
        self._evaluating: set[str] = set()  # workers of replica 0 that were told that all have trained
        self._under_way = False
        self._finishing = False
        self.results: dict[str, Any] = {}
        self.state_files: list[StateFile] = []
        self.curve: list[dict[str, float]] = []
        self.losses: list[tuple[int, float]] = []

    @property
    def shards(self) -> list[str]:
        """The current names of the shards."""
        return self._shards.names

    @property
    def reserved_names(self) -> list[str]:
        """Names that workers and shards may get when they are restarted, or join."""
        return [*self._elastic.reserved_names, *self._shards.reserved_names]

    @property
    def max_replicas(self) -> int:
        """A bound: the number of every replica that can take part is smaller."""
        return self._elastic.replica_numbers.stop

    @property
    def participation(self) -> dict[str, Any]:
        """How many batches each replica computed, and which replicas joined and left."""
        return self._elastic.statistics()

    @property
    def restarts(self) -> list[dict[str, Any]]:
        """The records of restarted replicas and shards."""
        return self._restarts.records

    @property
    def _folder(self) -> str:
        """Where shards and workers write the final checkpoint."""
        return str((self._job.out / CHECKPOINT).resolve())

    def roles(self) -> list[Role]:
        """Return the roles that the run starts with."""
        workers = [role for replica in self._elastic.replicas for role in self._worker_roles(replica)]
        return self._shards.roles() + workers

    def mark_started(self) -> None:
        """Note that all roles run."""
        self._start_s = self._elastic.start_s = time.monotonic()
        self._elastic.publish_limits()

    def watch(self, launcher: Launcher) -> None:
        """Start replicas that shall join, and stop starting replicas that are no longer needed."""
        for replica, record in self._elastic.apply_request():
            self._restarts.expect(replica_group(replica), record)
            launcher.add(self._worker_roles(replica))
        starting = [r for r in self._elastic.replica_numbers if self._restarts.is_missing(replica_group(r))]
        for replica in self._elastic.drop_unneeded(starting):
            names = [name for name, worker in self._workers.items() if worker.replica == replica]
            launcher.stop_roles(names)
            self._forget(replica, names)
            self._departed.append(replica)
        while self._departed:
            self._announce_departure(self._departed.pop(), launcher)
        self._send_due(launcher)

    def handle(self, message: Message, launcher: Launcher) -> None:
        """Take a message of a role into account, and send what follows from it."""
        self._checkpoints.handle(message)
        if self._shards.handle(message, launcher):
            return
        worker = self._workers.get(message.sender)
        if worker is None:
            return
        if message.kind in ("progress", "evaluated"):
            self._mark_training(worker.replica, message.body["seconds"])
        self._elastic.handle(worker, message)
        match message.kind:
            case "progress":
                self._record_progress(worker, message.body)
                self._request_checkpoint(message, launcher)
            case "evaluated" if worker.replica == 0:
                seconds = self._clock_offsets_s.get(0, 0.0) + message.body["seconds"]
                self.curve.append({**message.body, "samples": self._count_samples(message.body), "seconds": seconds})
            case "state_file" if worker.replica == 0:
                self.state_files.append(msgspec.convert(message.body["file"], StateFile))
            case "ready":
                self._ready.add(message.sender)
            case "trained":
                self._trained.add(worker)
            case "finished":
                self._record_result(worker, message.body["value"])
        self._send_due(launcher)

    def restart(self, loss: Loss) -> list[Role]:
        """Return what replaces a lost shard or replica, nothing where it is no longer needed.

        Raise the error of the loss at the restart limit.
        """
        self._checkpoints.timing.mark_interrupted()
        shards = self._shards.restart(loss)
        if shards is not None:
            return shards
        replica = next(self._workers[name].replica for name in loss.progress)
        progress = [(self._workers[name], last) for name, last in loss.progress.items()]
        if not self._elastic.handle_loss(replica, progress):
            self._forget(replica, loss.progress)
            self._elastic.mark_left(replica)
            self._departed.append(replica)
            return []
        # A machine may be ahead of those that it sends to: all continue after the step that every machine completed.
        done = min(max(parse_steps_done(last), self._steps_done.get(worker, 0)) for worker, last in progress)
        if any(worker.replica == replica for worker in self._trained):
            done = self._job.training.steps
        step = self._start_steps[replica] = max(self._start_steps[replica], done)
        self._forget(replica, loss.progress)
        reason = self._restarts.restart(replica_group(replica), loss.error, step=step)
        self._on_notice(f"replica {replica} restarts at step {step}: {reason}")
        return self._worker_roles(replica)

    def _announce_departure(self, replica: int, launcher: Launcher) -> None:
        """Tell the shards that a replica left, which it could not tell them itself: other replicas may wait for it."""
        names = self.shards
        for piece in self._job.slices:
            body = {"replica": replica, "number": 0}
            launcher.send(names[piece.shard], Message("leave", edge=piece.number, body=body))

    def _forget(self, replica: int, names: Iterable[str]) -> None:
        """Discard what the workers of a lost replica had completed or were about to report."""
        self._trained = {worker for worker in self._trained if worker.replica != replica}
        self._restarts.give_up(replica_group(replica))
        for name in names:
            self._shards.forget_worker(name)
            self._evaluating.discard(name)
            self._ready.discard(name)
            self.results.pop(worker_name(*self._workers.pop(name)), None)
        if replica == 0:
            self.state_files.clear()

    def _worker_roles(self, replica: int) -> list[Role]:
        """Return the roles of the next incarnation of a replica."""
        job, incarnation = self._job, self._restarts.incarnation(replica_group(replica))
        self._elastic.register_start(replica, incarnation)
        # Without a group, the loss of a replica ends the run.
        group = "" if job.method.needs_all_replicas else replica_group(replica)
        roles = []
        for machine in range(job.machines):
            setup = make_worker_spec(job, replica, machine, incarnation, self._start_steps[replica])
            name = worker_name(replica, machine, incarnation)
            self._workers[name] = WorkerId(replica, machine)
            plain = msgspec.to_builtins(setup, builtin_types=(bytes,))
            roles.append(Role(name, WORKER, plain, threads=job.worker_threads, group=group))
        return roles

    def _record_progress(self, worker: WorkerId, body: dict[str, Any]) -> None:
        self._steps_done[worker] = body["step"]
        if worker.replica == 0:
            samples, training = self._count_samples(body), self._job.training
            self.losses.append((samples, body["loss"]))
            by_batch = (samples // training.batch, training.batches)
            step, steps = by_batch if self._elastic.uses_leases else (body["step"], body["steps"])
            self._on_progress(self._job.method.name, step, steps, body["loss"])

    def _request_checkpoint(self, progress: Message, launcher: Launcher) -> None:
        """If a checkpoint by time is due, request it from all roles that write a part of it."""
        writers = [name for name, worker in self._workers.items() if worker.replica == 0]
        if progress.sender in writers and self._shards.all_serve:
            batches = self.losses[-1][0] // self._job.training.batch
            number = self._checkpoints.timing.note_progress(batches, progress.body["seconds"])
            for name in [*writers, *self.shards] if number is not None else []:
                launcher.send(name, Message("checkpoint", body={"checkpoint": number}))

    def _count_samples(self, body: dict[str, Any]) -> int:
        """Return the samples that replica 0 reports; never fewer than before, though it may get batches of others."""
        before = [samples for samples, _ in self.losses[-1:]] + [int(point["samples"]) for point in self.curve[-1:]]
        return max([int(body["samples"]), *before]) if self._elastic.uses_leases else int(body["samples"])

    def _mark_training(self, replica: int, seconds: float) -> None:
        """Note that a replica which was missing trains, for `seconds` by its own clock."""
        record = self._restarts.mark_working(replica_group(replica))
        if record is not None:
            self._clock_offsets_s[replica] = time.monotonic() - self._start_s - seconds
            self._elastic.mark_training(record)

    def _record_result(self, worker: WorkerId, value: dict[str, Any]) -> None:
        self._mark_training(worker.replica, value["seconds"])  # there may have been no step left to report
        self._trained.add(worker)
        seconds = self._clock_offsets_s.get(worker.replica, 0.0) + value["seconds"]
        self.results[worker_name(*worker)] = {**value, "seconds": seconds}
        if self._elastic.is_leaving(worker.replica) and not self._is_at_work(worker.replica):
            self._elastic.mark_left(worker.replica)

    def _is_at_work(self, replica: int) -> bool:
        """Return whether some machine of a replica trains."""
        return any(w.replica == replica and w not in self._trained for w in self._workers.values())

    def _start_training(self, launcher: Launcher) -> None:
        """Let workers train: at first all at once, when all are ready; workers that start later, at once."""
        if not self._under_way:
            if not self._ready >= self._workers.keys():
                return
            self._under_way = True
            self._start_s = self._elastic.start_s = time.monotonic()
        for name in sorted(self._ready - self._training):
            self._training.add(name)
            launcher.send(name, Message("start_training"))

    def _send_due(self, launcher: Launcher) -> None:
        """Answer workers that ask for batches; then, when all workers have trained, let replica 0 evaluate; then, when
        all workers have finished, let the shards write their files."""
        self._start_training(launcher)
        for name, reply in self._elastic.take_replies():
            launcher.send(name, reply)
        if len(self._trained) < len(self._workers):
            return
        for name in [name for name, worker in self._workers.items() if worker.replica == 0]:
            if name not in self._evaluating:
                self._evaluating.add(name)
                launcher.send(name, Message("all_trained", body={"path": self._folder}))
        if len(self.results) == len(self._workers) and not self._finishing:
            self._finishing = True
            for name in self.shards:
                launcher.send(name, Message("finish", body={"path": self._folder}))
