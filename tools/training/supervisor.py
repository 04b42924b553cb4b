"""`TrainingSupervisor`: follows a run of replicas and shards from its roles to its results, and replaces lost replicas.

A lost replica is restarted under new names, while the others train: it fetches the parameters from the shards and goes
on after the last step that it is known to have completed. Its buffers are those saved last (replica_state.py).

Where replicas go in lock step, none can go on without the others, and pushes of a worker that is lost with a shard are
nowhere any more. There is one way back: all roles are ended, and start again from the last recovery point
(recovery_points.py). Only a replica for which there are backups is restarted alone.

Where batches are leased (lease_server.py), the batches of a lost replica go to whoever asks next, nobody waits for it
when all else is done, and replicas join and leave as the user requests (scale_requests.py).
"""

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from ...ps.checkpoint.journal import RECOVERY_POINT
from ...ps.checkpoint.manifest import StateFile
from ...runtime.channel.message import Message
from ...runtime.hosts.host import Role
from ...runtime.launcher.launcher import Launcher
from ...runtime.launcher.membership import Loss
from ..hosts.run_hosts import RunHosts
from ..job.job import Job, make_worker_spec
from ..job.process_specs import replica_group, shard_group, worker_name
from ..job.stream_position import Position
from ..leases.lease_server import WorkerId
from ..leases.scale_requests import ScaleRequests
from ..replica.progress_log import parse_steps_done
from ..replica.replica_state import restored_files
from ..run_folder import CHECKPOINT
from ..run_listener import RunListener
from ..selection.verdicts import Verdicts
from .checkpoint_sets import CheckpointSets
from .elastic_replicas import ElasticReplicas
from .recovery_points import RecoveryPoints
from .roles import WORKER
from .run_record import RunRecord
from .shard_supervisor import ShardSupervisor
from .supervision import OnNotice, RestartLog


class TrainingSupervisor:
    """Follows one run.

    Args:
        hosts: where its roles run. requests: for more or fewer replicas. listener: hears of replica 0, and may end the
            training. on_notice: called with a sentence for every restart, and every replica that joins or leaves.

    Attributes:
        results: what each worker returned, by the name of its first incarnation.
        state_files: files with the buffers of replica 0, which the shards do not have.
        record: what replica 0 has reported.
    """

    def __init__(
        self,
        job: Job,
        hosts: RunHosts,
        *,
        listener: RunListener,
        on_notice: OnNotice,
        requests: ScaleRequests | None = None,
    ) -> None:
        self._job, self._hosts, self._listener, self._on_notice = job, hosts, listener, on_notice
        self._restarts = RestartLog(job.config.restarts)
        self._checkpoints = CheckpointSets(
            job, on_notice=on_notice, on_complete=listener.on_checkpoint, position=lambda: self.reached[1]
        )
        self._verdicts = Verdicts(
            job, stop_requested=lambda: listener.stop_requested, on_stop=self._end_early, on_notice=on_notice
        )
        self.record = RunRecord(job, listener)
        self._points = RecoveryPoints(job)
        self._shards = ShardSupervisor(job, hosts, self._restarts, self._points, on_notice=on_notice)
        self._elastic = ElasticReplicas(job, hosts, on_notice=on_notice, requests=requests)
        self._start_steps = Counter[int]()  # of the current incarnation of each replica
        self._steps_done: dict[WorkerId, int] = {}  # as the workers reported them
        self._lost: dict[str, Loss] = {}  # by group, for which all are to go back
        self._workers: dict[str, WorkerId] = {}  # by current name
        self._trained: set[WorkerId] = set()
        self._ready: set[str] = set()  # workers that wait to be told to start
        self._evaluating = set[str]()  # workers of replica 0 that were told that all have trained
        self._under_way, self._finishing = False, set[str]()  # shards that were told to finish
        self.results: dict[str, Any] = {}
        self.state_files: list[StateFile] = []
        self._steps = job.training.steps  # of each replica; fewer where training ends early

    @property
    def shards(self) -> list[str]:
        """The current names of the shards."""
        return self._shards.names

    @property
    def max_replicas(self) -> int:
        """A bound: the number of every replica that can take part is smaller."""
        return self._elastic.replica_numbers.stop

    @property
    def reached(self) -> tuple[int, Position | None]:
        """The steps of each replica when all have ended; and where in their data, beyond that."""
        return self._elastic.count_steps(self._steps_done.values()) or self._steps, self._elastic.position

    @property
    def participation(self) -> dict[str, Any]:
        """How many batches each replica computed, and which replicas joined and left."""
        return self._elastic.statistics()

    @property
    def restarts(self) -> list[dict[str, Any]]:
        """The records of restarted replicas and shards."""
        return self._restarts.records

    def roles(self) -> list[Role]:
        """Return the roles that the run starts with."""
        workers = [role for replica in self._elastic.replicas for role in self._worker_roles(replica)]
        return self._shards.roles() + workers

    def mark_started(self) -> None:
        """Note that all roles run."""
        self.record.start_s = self._elastic.start_s = time.monotonic()
        self._elastic.publish_limits()

    def count_leases(self) -> int | None:
        """Return how many batches are leased and not known to be computed; None where batches are not leased."""
        return self._elastic.count_leases()

    def watch(self, launcher: Launcher) -> None:
        """Start replicas that shall join, stop starting replicas that are no longer needed, take all back if due."""
        self._verdicts.heed_request()
        if self._lost:
            self._take_all_back(launcher)
        for replica, record in self._elastic.apply_request():
            self._restarts.expect(replica_group(replica), record)
            launcher.add(self._worker_roles(replica))
        starting = (r for r in self._elastic.replica_numbers if self._restarts.is_missing(replica_group(r)))
        for replica in self._elastic.list_unneeded(starting) if self._restarts.any_missing else ():
            workers = {name: worker for name, worker in self._workers.items() if worker.replica == replica}
            launcher.stop_roles(list(workers))
            self._elastic.handle_loss(replica, workers)
            self._drop(replica, workers)
        self._send_due(launcher)

    def handle(self, message: Message, launcher: Launcher) -> None:
        """Take a message of a role into account, and send what follows from it."""
        self._checkpoints.handle(message)
        self._points.handle(message)
        if message.kind == "fenced":
            self._elastic.handle_fenced(message)
            self._send_due(launcher)
        if self._shards.handle(message, launcher):
            return
        worker = self._workers.get(message.sender)
        if worker is None:
            return
        if message.kind in ("progress", "evaluated"):
            self._mark_training(worker.replica, message.body["seconds"])
        self._elastic.handle(worker, message)
        self._verdicts.handle(message)
        if worker.replica == 0:
            self.record.handle(message)
        match message.kind:
            case "progress":
                self._steps_done[worker] = message.body["step"]
                self._request_checkpoint(message, launcher)
                self._request_recovery_point(message, launcher)
            case "state_file" if worker.replica == 0:
                self.state_files.append(msgspec.convert(message.body["file"], StateFile))
            case "ready":
                self._ready.add(message.sender)
            case "trained":
                self._steps_done |= {worker: message.body["steps"]}
                self._trained.add(worker)
            case "finished":
                self._record_result(worker, message.body["value"])
        self._send_due(launcher)

    def restart(self, loss: Loss) -> list[Role]:
        """Return what replaces a lost shard or replica, nothing where it is no longer needed.

        Raise the error of the loss at the restart limit.
        """
        self._checkpoints.timing.mark_interrupted()
        self._points.interrupt()
        if self._must_all_go_back(loss):
            step = self._points.step
            reason = self._restarts.restart(loss.group, loss.error, step=step)
            self._lost[loss.group] = loss
            self._on_notice(f"{loss.group} is lost: {reason}; all go back to step {step}")
            return []
        shards = self._shards.restart(loss)
        if shards is not None:
            return shards
        replica = next(self._workers[name].replica for name in loss.progress)
        progress = [(self._workers[name], last) for name, last in loss.progress.items()]
        if not self._elastic.handle_loss(replica, {name: self._workers[name] for name in loss.progress}):
            self._drop(replica, loss.progress)
            return []
        # A machine may be ahead of those that it sends to: all continue after the step that every machine completed.
        done = min(max(parse_steps_done(last), self._steps_done.get(worker, 0)) for worker, last in progress)
        if any(worker.replica == replica for worker in self._trained) and not self._job.training.is_open_ended:
            done = self._job.training.steps
        step = self._start_steps[replica] = max(self._start_steps[replica], done)
        self._forget(replica, loss.progress)
        reason = self._restarts.restart(replica_group(replica), loss.error, step=step)
        self._on_notice(f"replica {replica} restarts at step {step}: {reason}")
        return self._worker_roles(replica)

    def _must_all_go_back(self, loss: Loss) -> bool:
        """Return whether the others cannot go on without what is lost."""
        method = self._job.method
        if not method.lock_step:
            return False
        groups = {replica_group(replica) for replica in self._elastic.replica_numbers}
        missing = {group for group in groups if self._restarts.is_missing(group)} | {loss.group}
        return loss.group not in groups or bool(self._lost) or len(missing) > method.backup_replicas

    def _take_all_back(self, launcher: Launcher) -> None:
        """End all roles that are left, and start all from the last recovery point."""
        lost, self._lost = self._lost, {}
        gone = {name for loss in lost.values() for name in loss.progress}
        shards = [name for index, name in enumerate(self.shards) if shard_group(index) not in lost]
        launcher.stop_roles([name for name in (*self._workers, *shards) if name not in gone])
        self._shards.follow(lost)
        for group in [replica_group(replica) for replica in self._elastic.replicas]:
            if group not in lost:
                self._restarts.follow(group)
        step = self._points.step
        of_roles = self._workers, self._trained, self._ready, self._evaluating, self._finishing, self.state_files
        for records in (self._steps_done, self.results, *of_roles):
            records.clear()
        self._checkpoints.abandon_incomplete()
        self._verdicts.go_back()
        self.record.go_back(step * self._job.replicas * self._job.training.batch)
        self._steps = self._job.training.steps
        self._start_steps = Counter(dict.fromkeys(self._elastic.replicas, step))
        launcher.add(self.roles())

    def _drop(self, replica: int, names: Iterable[str]) -> None:
        """Do without a replica from now on."""
        self._forget(replica, names)
        self._elastic.drop(replica)

    def _forget(self, replica: int, names: Iterable[str]) -> None:
        """Discard what the workers of a lost replica had completed or were about to report."""
        self._trained = {worker for worker in self._trained if worker.replica != replica}
        self._restarts.give_up(replica_group(replica))
        for name in names:
            self._shards.forget_worker(name)
            self._evaluating.discard(name)
            self._ready.discard(name)
            self._verdicts.forget(name)
            self.results.pop(worker_name(*self._workers.pop(name)), None)
        if replica == 0:
            self.state_files.clear()

    def _worker_roles(self, replica: int) -> list[Role]:
        """Return the roles of the next incarnation of a replica."""
        job, incarnation = self._job, self._restarts.incarnation(replica_group(replica))
        self._elastic.register_start(replica, incarnation)
        group = "" if job.method.needs_all_replicas else replica_group(replica)  # without one, its loss ends all
        roles = []
        for machine in range(job.machines):
            saved = self._points.local_state_file(replica, machine) if job.method.lock_step else ""
            step, host = self._start_steps[replica], self._hosts.worker_host(replica, machine)
            training, loop = self._hosts.training_on(host), self._elastic.loop_of(replica)
            setup = make_worker_spec(
                job, replica, machine, incarnation, step, local_state=saved, training=training, loop=loop
            )
            name = worker_name(replica, machine, incarnation)
            self._workers[name] = WorkerId(replica, machine)
            plain = msgspec.to_builtins(setup, builtin_types=(bytes,))
            role = Role(name, WORKER, plain, threads=self._hosts.threads_on(host), group=group)
            own = restored_files(replica, machine, local_state=saved, restarted=incarnation > 0)
            roles.append(self._hosts.place(role, host, files=[*job.first_files, *own]))
        return roles

    def _request_checkpoint(self, progress: Message, launcher: Launcher) -> None:
        """If a checkpoint by time is due, request it from all roles that write a part of it."""
        if self._workers[progress.sender].replica == 0 and self._shards.all_serve:
            writers = [name for name, worker in self._workers.items() if worker.replica == 0]
            number = self._checkpoints.timing.note_progress(self.record.batches, progress.body["seconds"])
            for name in [*writers, *self.shards] if number is not None else []:
                launcher.send(name, Message("checkpoint", body={"number": number}))

    def _request_recovery_point(self, progress: Message, launcher: Launcher) -> None:
        """If replicas go in lock step, and one is due, request a recovery point from all roles."""
        worker = self._workers[progress.sender]
        if worker.replica or not self._job.method.lock_step or self._restarts.any_missing:
            return
        number = self._points.note_progress(self.record.batches, progress.body["seconds"])
        for name in [*self._workers, *self.shards] if number is not None else []:
            launcher.send(name, Message(RECOVERY_POINT, body={"number": number}))

    def _end_early(self, step: int) -> None:
        """End the training: no more batches are leased, or all replicas take one more step after this one."""
        batches = self._elastic.end_early(self._job.replicas)
        self._steps = min(self._steps, step + 2) if batches is None else batches // self._job.replicas

    def _mark_training(self, replica: int, seconds: float) -> None:
        """Note that a replica which was missing trains, for `seconds` by its own clock."""
        record = self._restarts.mark_working(replica_group(replica))
        if record is not None:
            self.record.set_clock(replica, seconds)
            self._elastic.mark_training(record)

    def _record_result(self, worker: WorkerId, value: dict[str, Any]) -> None:
        self._mark_training(worker.replica, value["seconds"])  # there may have been no step left to report
        self._trained.add(worker)
        seconds = self.record.on_run_clock(worker.replica, value["seconds"])
        self.results[worker_name(*worker)] = {**value, "seconds": seconds}
        if self._elastic.is_leaving(worker.replica) and not any(
            other.replica == worker.replica and other not in self._trained for other in self._workers.values()
        ):
            self._elastic.mark_left(worker.replica)

    def _start_training(self, launcher: Launcher) -> None:
        """Let workers train: at first all at once, when all are ready; workers that start later, at once."""
        if not self._under_way:
            if not self._ready >= self._workers.keys():
                return
            self._under_way = True
            self.record.start_s = self._elastic.start_s = time.monotonic()
        for name in sorted(self._ready):
            launcher.send(name, Message("start_training"))
        self._ready.clear()

    def _send_due(self, launcher: Launcher) -> None:
        """Answer workers; when all trained, let replica 0 evaluate; when all have finished, have the shards write."""
        self._start_training(launcher)
        fences = self._elastic.tell_shards(self._shards.serving) if self._elastic.has_news_for_shards else []
        verdicts = self._verdicts.take_replies(self.record.curve)
        for name, message in (*fences, *verdicts, *self._elastic.take_replies()):
            launcher.send(name, message)
        if len(self._trained) < len(self._workers):
            return
        for name in [name for name, worker in self._workers.items() if worker.replica == 0 or self._job.script]:
            if name not in self._evaluating:
                self._evaluating.add(name)
                body = {"path": CHECKPOINT, "batches": self.reached[0] * self._job.replicas}
                launcher.send(name, Message("all_trained", body=body))
        if len(self.results) == len(self._workers):
            for index, name in enumerate(self.shards):
                if name not in self._finishing and not self._restarts.is_missing(shard_group(index)):
                    self._finishing.add(name)
                    launcher.send(name, Message("finish", body={"path": CHECKPOINT}))
