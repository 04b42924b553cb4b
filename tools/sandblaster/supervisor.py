"""`SandblasterSupervisor`: follows a run of a coordinator, vector shards and gradient workers, and restarts lost ones.

The coordinator may be restarted too: it replays its recovery log. A restarted role has a new name, which is told to all
roles that send to it.
"""

import time
from collections.abc import Iterable
from typing import Any

import msgspec

from ...ps.checkpoint.manifest import StateFile
from ...ps.methods.sandblaster import Sandblaster
from ...ps.sandblaster.solver import Portions
from ...ps.slices.slicing import slices_of_shard
from ...runtime.channel.message import Message
from ...runtime.hosts.host import Role
from ...runtime.launcher.launcher import Launcher
from ...runtime.launcher.membership import Loss
from ..hosts.run_hosts import RunHosts
from ..job.job import Job, make_worker_spec
from ..job.process_specs import replica_group, shard_group, shard_name, worker_name
from ..run_folder import CHECKPOINT
from ..run_listener import RunListener, StepReport
from ..training.supervision import OnNotice, RestartLog, describe_wait_for_room
from .roles import COORDINATOR, SHARD, WORKER, CoordinatorSpec, GradientWorkerSpec, VectorShardSpec

COORDINATOR_GROUP = "coordinator"  # and the name of its first incarnation
THREADS = 1  # of torch in a worker, on any machine: matrix products have other bits with two


class SandblasterSupervisor:
    """Follows one run.

    Args:
        listener: hears of every iteration and of the evaluation.
        on_notice: called with a sentence for every restart.

    Attributes:
        seconds: from the start to the last iteration.
        iterations: what the coordinator reported of each iteration.
        results: what each worker returned, by name.
        state_files: files with the buffers of replica 0, which the shards do not have.
    """

    def __init__(
        self,
        job: Job,
        method: Sandblaster,
        portions: Portions,
        hosts: RunHosts,
        *,
        listener: RunListener,
        on_notice: OnNotice,
    ) -> None:
        self._hosts = hosts
        self._job, self._method, self._portions = job, method, portions
        self._listener, self._on_notice = listener, on_notice
        self._restarts = RestartLog(job.config.restarts)
        self._groups: dict[str, str] = {}  # of each role
        self._lost_workers: list[str] = []  # which the coordinator has to know
        self._workers: set[str] = set()  # connected workers, which have to know the names of the others
        self._trained: set[str] = set()
        self._finishing = False
        self._finished_shards: list[str] = []  # shards that hold the final parameters, as the coordinator reports
        self._start_s = time.monotonic()
        self.seconds = 0.0
        self.iterations: list[dict[str, Any]] = []
        self.results: dict[str, Any] = {}
        self.state_files: list[StateFile] = []
        self.scores: dict[str, Any] = {}  # a point of a learning curve

    @property
    def shards(self) -> list[str]:
        """The current names of the shards."""
        return [shard_name(n, self._restarts.incarnation(shard_group(n))) for n in range(self._job.shards)]

    @property
    def coordinator(self) -> str:
        """The current name of the coordinator."""
        return _coordinator_name(self._restarts.incarnation(COORDINATOR_GROUP))

    @property
    def restarts(self) -> list[dict[str, Any]]:
        """The records of restarted roles."""
        return self._restarts.records

    def roles(self) -> list[Role]:
        """Return the roles that the run starts with."""
        shards = [self._shard_role(index) for index in range(self._job.shards)]
        workers = [role for replica in range(self._job.replicas) for role in self._worker_roles(replica)]
        return [self._coordinator_role(), *shards, *workers]

    def mark_started(self) -> None:
        """Note that all roles run."""
        self._start_s = time.monotonic()

    def watch(self, launcher: Launcher) -> None:
        """Tell the coordinator of workers that are lost."""
        if self._lost_workers and not self._restarts.is_missing(COORDINATOR_GROUP):
            launcher.send(self.coordinator, Message("lost", body={"names": self._lost_workers}))
            self._lost_workers = []

    def restart(self, loss: Loss) -> list[Role]:
        """Return what replaces a lost group.

        Raise the error of the loss at the restart limit, and at the end of the run unless workers are lost.
        """
        group = self._groups[next(iter(loss.progress))]
        kind, _, number = group.partition(" ")
        if self._finishing and kind != "replica":
            raise self._restarts.final_error(group, loss.error)
        reason = self._restarts.restart(group, loss.error)
        self._on_notice(f"{group} restarts: {reason}")
        for name in loss.progress:
            self._workers.discard(name)
            self._trained.discard(name)
        if kind != "replica":
            self._finished_shards = []
        if group == COORDINATOR_GROUP:
            return [self._coordinator_role()]
        if kind == "shard":
            return [self._shard_role(int(number))]
        self._lost_workers += list(loss.progress)
        if number == "0":
            self.state_files.clear()
        return self._worker_roles(int(number))

    def count_leases(self) -> None:
        """Return None: portions of batches are not leased by the supervisor."""

    def handle(self, message: Message, launcher: Launcher) -> None:
        """Take a message of a role into account, and send what follows from it."""
        sender, body = message.sender, message.body
        if self._groups.get(sender) is None or sender not in self._current_names():
            return
        match message.kind:
            case "iteration":
                self._record_iteration(body)
            case "serving":
                self._restarts.mark_working(self._groups[sender])
                for name in self._select_present([*self._workers, self.coordinator]):
                    self._send_new_name(name, sender, launcher)
                if sender == self.coordinator:
                    for shard in self._select_present(self.shards):
                        self._send_new_name(sender, shard, launcher)
            case "connected":
                self._workers.add(sender)
                self._restarts.mark_working(self._groups[sender])
                for name in self._select_present([*self.shards, self.coordinator]):
                    self._send_new_name(sender, name, launcher)
            case "over" if sender == self.coordinator:
                self._finished_shards = body["shards"]
                self._finish(launcher)
            case "trained":
                self._trained.add(sender)
                if body["scores"] is not None:
                    self.scores = body["scores"]
                self._request_state(launcher)
            case "waiting_for_room":
                self._on_notice(describe_wait_for_room(message.sender, message.body["reason"]))
            case "state_file":
                self.state_files.append(msgspec.convert(body["file"], StateFile))
            case "finished":
                self.results[sender] = body["value"]
                self._finish(launcher)

    def _select_present(self, names: Iterable[str]) -> list[str]:
        """Return the names of roles that are not being restarted; the others are told all names when they are back."""
        return [name for name in names if not self._restarts.is_missing(self._groups[name])]

    def _current_names(self) -> set[str]:
        """Return the current names of all roles."""
        workers = [
            worker_name(replica, machine, self._restarts.incarnation(replica_group(replica)))
            for replica in range(self._job.replicas)
            for machine in range(self._job.machines)
        ]
        return {self.coordinator, *self.shards, *workers}

    def _request_state(self, launcher: Launcher) -> None:
        """When all machines of replica 0 have evaluated, let them write what the shards do not have."""
        incarnation = self._restarts.incarnation(replica_group(0))
        names = {worker_name(0, machine, incarnation) for machine in range(self._job.machines)}
        if names <= self._trained:
            for name in sorted(names):
                launcher.send(name, Message("all_trained", body={"path": CHECKPOINT}))

    def _finish(self, launcher: Launcher) -> None:
        """When all workers have finished and all current shards hold the final parameters, let the others finish."""
        workers = {name for name in self._current_names() if name.startswith("worker")}
        if workers <= set(self.results) and self._finished_shards == self.shards and not self._finishing:
            self._finishing = True
            for name in (self.coordinator, *self.shards):
                launcher.send(name, Message("finish", body={"path": CHECKPOINT}))

    def _record_iteration(self, body: dict[str, Any]) -> None:
        if self.iterations and body["number"] <= self.iterations[-1]["number"]:
            return  # a restarted coordinator replays it
        self.seconds = time.monotonic() - self._start_s
        self.iterations.append(body)
        samples = body["number"] * self._portions.samples
        steps, loss = self._method.iterations, body["loss"]
        self._listener.on_step(StepReport(self._method.name, body["number"], steps, loss, samples, self.seconds))

    def _send_new_name(self, name: str, other: str, launcher: Launcher) -> None:
        """Tell a role the name of another role that was restarted."""
        if "+" not in other or name == other:
            return
        if other.startswith(COORDINATOR_GROUP):
            if not name.startswith("shard"):
                launcher.send(name, Message("coordinator_replaced", body={"name": other}))
            return
        index = self.shards.index(other)
        launcher.send(name, Message("shard_replaced", body={"shard": index, "name": other}))

    def _role(self, name: str, group: str, entry: str, spec: msgspec.Struct, *, threads: int = 1) -> Role:
        self._groups[name] = group
        plain = msgspec.to_builtins(spec, builtin_types=(bytes,))
        role = Role(name, entry, plain, threads=threads, group=group if self._job.config.restarts else "")
        return self._hosts.place(role, self._hosts.first)

    def _coordinator_role(self) -> Role:
        job, method = self._job, self._method
        run = {
            "method": str(msgspec.structs.replace(method, iterations=0)),
            "samples": self._portions.samples,
            "portion": self._portions.size,
            "shards": job.shards,
            "machines": job.machines,
            "parameters": sum(piece.size for piece in job.slices),
        }
        spec = CoordinatorSpec(
            method=method,
            samples=self._portions.samples,
            portion=self._portions.size,
            shards=self.shards,
            replicas=job.replicas,
            machines=job.machines,
            folder=job.training.folder,
            run=run,
        )
        return self._role(self.coordinator, COORDINATOR_GROUP, COORDINATOR, spec)

    def _shard_role(self, index: int) -> Role:
        job = self._job
        spec = VectorShardSpec(
            index=index,
            slices=slices_of_shard(job.slices, index),
            regions=job.regions,
            samples=self._portions.samples,
            portion=self._portions.size,
            folder=job.training.folder,
        )
        return self._role(self.shards[index], shard_group(index), SHARD, spec)

    def _worker_roles(self, replica: int) -> list[Role]:
        job, group = self._job, replica_group(replica)
        incarnation = self._restarts.incarnation(group)
        roles = []
        for machine in range(job.machines):
            spec = GradientWorkerSpec(make_worker_spec(job, replica, machine, incarnation), self._portions.samples)
            name = worker_name(replica, machine, incarnation)
            roles.append(self._role(name, group, WORKER, spec, threads=THREADS))
        return roles


def _coordinator_name(incarnation: int) -> str:
    return COORDINATOR_GROUP + (f"+{incarnation}" if incarnation else "")
