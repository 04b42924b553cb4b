"""`BatchSupervisor`: follows a run by a batch method - who takes the place of what is lost, and what each has told."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ...ps.slices.slicing import of_shard
from ...ps.checkpoint.manifest import StateFile
from ...ps.sandblaster.solver import Portions
from ...ps.methods.sandblaster import Sandblaster
from ...runtime.launcher.liveness import Loss
from ...runtime.launcher.launcher import Launcher, Role
from ...runtime.channel.message import Message
from .roles import COORDINATOR, SHARD, WORKER, CoordinatorSetup, MemberSetup, ShardSetup
from ..job.run_config import shard_name, worker_name
from ..job.portion_size import FOLDER
from ..job.prepare import Prepared
from ..job.export_weights import CHECKPOINT
from ..training.shard_supervisor import final
from ..job.job import worker_setup

NAME = "coordinator"
THREADS = 1  # of torch in a worker, however many there are: products have other bits with two

Tell = Callable[[str, int, int, float], None]  # run, step, steps, loss
Note = Callable[[str], None]


class BatchSupervisor:
    """tell: progress by iteration; note: is told in words of every restart."""

    def __init__(self, job: Prepared, method: Sandblaster, portions: Portions, *, tell: Tell, note: Note) -> None:
        self._job, self._method, self._portions = job, method, portions
        self._tell, self._note = tell, note
        self._times = Counter[str]()  # how often each group was started again
        self._groups: dict[str, str] = {}  # of each role
        self._lost_at: dict[str, float] = {}
        self._gone: list[str] = []  # workers that the coordinator has to be told of
        self._workers: set[str] = set()  # that can be told something
        self._trained: set[str] = set()
        self._finishing = False
        self._over: list[str] = []  # shards that are at the end, as the coordinator says
        self._began = time.monotonic()
        self.seconds = 0.0  # to the last iteration
        self.iterations: list[dict[str, Any]] = []
        self.results: dict[str, Any] = {}
        self.restarts: list[dict[str, Any]] = []
        self.state: list[StateFile] = []
        self.accuracy: float | None = None

    @property
    def shards(self) -> list[str]:
        """The names of the shards."""
        return [shard_name(n, self._times[f"shard {n}"]) for n in range(self._job.options.shards)]

    @property
    def coordinator(self) -> str:
        """Its name."""
        return _renamed(NAME, self._times[NAME])

    @property
    def spares(self) -> list[str]:
        """Names that roles may get when they are started again."""
        job, times = self._job, range(1, self._job.options.restarts + 1)
        workers = [
            worker_name(r, m, n) for r in range(job.options.replicas) for m in range(job.machines) for n in times
        ]
        shards = [shard_name(i, n) for i in range(job.options.shards) for n in times]
        return [*workers, *shards, *(_renamed(NAME, n) for n in times)]

    def roles(self) -> list[Role]:
        """All roles as the run begins."""
        job = self._job
        found = [self._coordinator(), *(self._shard(n) for n in range(job.options.shards))]
        return found + [role for replica in range(job.options.replicas) for role in self._replica(replica)]

    def began(self) -> None:
        """All roles were told to start."""
        self._began = time.monotonic()

    def watch(self, launcher: Launcher) -> None:
        """Tell the coordinator of workers that are gone."""
        if self._gone and NAME not in self._lost_at:
            launcher.send(self.coordinator, Message("lost", body={"names": self._gone}))
            self._gone = []

    def renew(self, loss: Loss) -> list[Role]:
        """What takes the place of a group that was lost; its error where it was lost too often, or at the end."""
        group = self._groups[next(iter(loss.progress))]
        if self._times[group] == self._job.options.restarts or (self._finishing and not group.startswith("replica")):
            raise final(loss.error, group, self._times[group])
        self._times[group] += 1
        self._lost_at[group] = time.monotonic()
        why = loss.error.facts.partition("\n")[0]
        self.restarts.append({"who": group, "code": loss.error.code, "why": why, "seconds": None})
        self._note(f"{group} starts again: {why}")
        for name in loss.progress:
            self._workers.discard(name)
            self._trained.discard(name)
        if not group.startswith("replica"):
            self._over = []
        if group == NAME:
            return [self._coordinator()]
        kind, _, number = group.partition(" ")
        if kind == "shard":
            return [self._shard(int(number))]
        self._gone += list(loss.progress)
        if number == "0":
            self.state.clear()
        return self._replica(int(number))

    def take(self, message: Message, launcher: Launcher) -> None:
        """Take in what a role says, and answer it."""
        sender, body = message.sender, message.body
        if self._groups.get(sender) is None or sender not in self._names:
            return
        match message.kind:
            case "iteration":
                self._iteration(body)
            case "serving":
                self._back(sender)
                for name in self._there([*self._workers, self.coordinator]):
                    self._point_to(name, sender, launcher)
                if sender == self.coordinator:
                    for shard in self._there(self.shards):
                        self._point_to(sender, shard, launcher)
            case "began":
                self._workers.add(sender)
                self._back(sender)
                for name in self._there([*self.shards, self.coordinator]):
                    self._point_to(sender, name, launcher)
            case "over" if sender == self.coordinator:
                self._over = body["shards"]
                self._finish(launcher)
            case "trained":
                self._trained.add(sender)
                if body["test_accuracy"] is not None:
                    self.accuracy = body["test_accuracy"]
                self._save(launcher)
            case "state":
                self.state.append(msgspec.convert(body["file"], StateFile))
            case "finished":
                self.results[sender] = body["value"]
                self._finish(launcher)

    def _there(self, names: Sequence[str]) -> list[str]:
        """Those that are not being started again; when they are back, all are told."""
        return [name for name in names if self._groups[name] not in self._lost_at]

    @property
    def _names(self) -> set[str]:
        """Of all roles as they are now."""
        job = self._job
        times = [self._times[f"replica {replica}"] for replica in range(job.options.replicas)]
        workers = [worker_name(r, m, n) for r, n in enumerate(times) for m in range(job.machines)]
        return {self.coordinator, *self.shards, *workers}

    def _save(self, launcher: Launcher) -> None:
        """Once all machines of replica 0 have tested, they write what the shards lack."""
        first = {worker_name(0, m, self._times["replica 0"]) for m in range(self._job.machines)}
        if first <= self._trained:
            for name in sorted(first):
                launcher.send(name, Message("all trained", body={"path": self._folder}))

    def _finish(self, launcher: Launcher) -> None:
        """Once all workers have finished, and all shards that there are are at the end, so do the others."""
        left = {name for name in self._names if name.startswith("worker")} - set(self.results)
        if not left and self._over == self.shards and not self._finishing:
            self._finishing = True
            for name in (self.coordinator, *self.shards):
                launcher.send(name, Message("finish", body={"path": self._folder}))

    @property
    def _folder(self) -> str:
        return str((self._job.options.out / CHECKPOINT).resolve())

    def _iteration(self, body: dict[str, Any]) -> None:
        if self.iterations and body["number"] <= self.iterations[-1]["number"]:
            return
        self.seconds = time.monotonic() - self._began
        self.iterations.append(body)
        self._tell(self._method.name, body["number"], self._method.iterations, body["loss"])

    def _back(self, name: str) -> None:
        since = self._lost_at.pop(self._groups[name], None)
        if since is not None:
            last = next(one for one in reversed(self.restarts) if one["who"] == self._groups[name])
            last["seconds"] = time.monotonic() - since

    def _point_to(self, name: str, other: str, launcher: Launcher) -> None:
        """Tell a role by what name another goes, where that is not its first."""
        if "+" not in other or name == other:
            return
        if other.startswith(NAME):
            if not name.startswith("shard"):
                launcher.send(name, Message("coordinated", body={"name": other}))
            return
        index = self.shards.index(other)
        launcher.send(name, Message("moved", body={"shard": index, "name": other}))

    def _role(self, name: str, group: str, entry: str, setup: msgspec.Struct, *, threads: int = 1) -> Role:
        self._groups[name] = group
        plain = msgspec.to_builtins(setup, builtin_types=(bytes,))
        return Role(name, entry, plain, threads=threads, group=group if self._job.options.restarts else "")

    def _coordinator(self) -> Role:
        job, method = self._job, self._method
        run = {
            "method": str(msgspec.structs.replace(method, iterations=0)),
            "samples": self._portions.samples,
            "portion": self._portions.size,
            "shards": job.options.shards,
            "machines": job.machines,
            "parameters": sum(piece.size for piece in job.slices),
        }
        setup = CoordinatorSetup(
            method,
            self._portions.samples,
            self._portions.size,
            self.shards,
            job.options.replicas,
            job.machines,
            str((job.options.out / FOLDER).resolve()),
            run,
        )
        return self._role(self.coordinator, NAME, COORDINATOR, setup)

    def _shard(self, index: int) -> Role:
        job = self._job
        setup = ShardSetup(
            index,
            of_shard(job.slices, index),
            job.regions,
            self._portions.samples,
            self._portions.size,
            job.course.initial,
            str((job.options.out / FOLDER).resolve()),
        )
        return self._role(self.shards[index], f"shard {index}", SHARD, setup)

    def _replica(self, replica: int) -> list[Role]:
        job, group = self._job, f"replica {replica}"
        roles = []
        for machine in range(job.machines):
            setup = worker_setup(job, replica, machine, self._times[group])
            name = worker_name(replica, machine, self._times[group])
            member = MemberSetup(setup, self._portions.samples)
            roles.append(self._role(name, group, WORKER, member, threads=THREADS))
        return roles


def _renamed(name: str, times: int) -> str:
    return name + (f"+{times}" if times else "")
