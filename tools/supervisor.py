"""`Supervisor`: what a run of replicas and shards is made of, what its roles tell, and what follows where one is lost.

A replica that was lost is started again under new names: it fetches its parameters from the shards and goes on after
the last step that it is known to have done, while the other replicas train. Steps that it made after its last beacon
are made again, at most half a second of them. Its buffers are those that its workers kept last (buffer_file.py).
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ..partition.errors import CutsetError
from ..ps.layout import of_machine, of_shard
from ..ps.manifest import StateFile
from ..runtime.coordinator import Loss
from ..runtime.launcher import Launcher, Role
from ..runtime.message import Message
from .course import ShardSetup, WorkerSetup, worker_name
from .prepare import Prepared
from .roles import SHARD, WORKER
from .saving import CHECKPOINT
from .training_log import steps_done

Tell = Callable[[str, int, int, float], None]  # run, step, steps, loss
Note = Callable[[str], None]
Place = tuple[int, int]  # replica and machine


class Supervisor:
    """Follows one run. tell: progress of replica 0; note: is told in words of every restart."""

    def __init__(self, job: Prepared, *, tell: Tell, note: Note) -> None:
        self._job, self._tell, self._note = job, tell, note
        self._replicas, self._most = job.options.replicas, job.options.restarts
        self._began = time.monotonic()
        self._times = [0] * self._replicas  # that each replica was started again
        self._first = [0] * self._replicas  # the step that it began with then
        self._done: dict[Place, int] = {}  # steps that each worker has said it had done
        self._ahead_s = [0.0] * self._replicas  # what its own clock, which began with it, lacks
        self._lost_at: dict[int, float] = {}  # replicas that do not train yet
        self._places: dict[str, Place] = {}
        self._trained: set[Place] = set()
        self._told: set[str] = set()
        self._finishing = False
        self.results: dict[str, Any] = {}  # what each worker returned, by the name that it had at first
        self.state: list[StateFile] = []
        self.curve: list[dict[str, float]] = []
        self.losses: list[tuple[int, float]] = []
        self.restarts: list[dict[str, Any]] = []

    @property
    def shards(self) -> list[str]:
        """The names of the shards."""
        return [f"shard-{s}" for s in range(self._job.options.shards)]

    @property
    def spares(self) -> list[str]:
        """Names that workers may get when they are started again."""
        places = [(r, m) for r in range(self._replicas) for m in range(self._job.machines)]
        return [worker_name(*place, times) for place in places for times in range(1, self._most + 1)]

    @property
    def _folder(self) -> str:
        """Where shards and workers write the checkpoint."""
        return str((self._job.options.out / CHECKPOINT).resolve())

    def roles(self) -> list[Role]:
        """All roles as the run begins."""
        job = self._job
        shards = [
            Role(name, SHARD, msgspec.to_builtins(ShardSetup(s, of_shard(job.slices, s), job.serving)))
            for s, name in enumerate(self.shards)
        ]
        return shards + [role for replica in range(self._replicas) for role in self._workers(replica)]

    def began(self) -> None:
        """All roles were told to start."""
        self._began = time.monotonic()

    def take(self, message: Message, launcher: Launcher) -> None:
        """Take in what a role says, and answer it."""
        place = self._places.get(message.sender)
        if place is None:
            return
        if message.kind in ("progress", "tested") and place[0] in self._lost_at:
            self._back(place[0], message.body["seconds"])
        match message.kind:
            case "progress":
                self._progress(place, message.body)
            case "tested" if place[0] == 0:
                self.curve.append({**message.body, "seconds": self._ahead_s[0] + message.body["seconds"]})
            case "state" if place[0] == 0:
                self.state.append(msgspec.convert(message.body["file"], StateFile))
            case "trained":
                self._trained.add(place)
            case "finished":
                self._finished(place, message.body["value"])
        self._answer(launcher)

    def renew(self, loss: Loss) -> list[Role]:
        """The workers that take the place of a replica's; its error where it was lost too often."""
        replica = next(self._places[name][0] for name in loss.progress)
        # A machine may be ahead of those that it sends to.
        done = min(max(steps_done(p), self._done.get(self._places[name], 0)) for name, p in loss.progress.items())
        if any(place[0] == replica for place in self._trained):
            done = self._job.course.steps
        if self._times[replica] == self._most:
            raise self._final(replica, loss.error)
        self._times[replica] += 1
        self._first[replica] = max(self._first[replica], done)
        self._forget(replica, loss.progress)
        self._lost_at[replica] = time.monotonic()
        why, first = loss.error.facts.partition("\n")[0], self._first[replica]
        self.restarts.append({"replica": replica, "step": first, "code": loss.error.code, "why": why, "seconds": None})
        self._note(f"replica {replica} starts again at step {first}: {why}")
        return self._workers(replica)

    def _final(self, replica: int, error: CutsetError) -> CutsetError:
        if not self._most:
            return error
        facts, *more = error.facts.split("\n", 1)
        times = "once" if self._most == 1 else f"{self._most} times"
        said = f"{facts}; replica {replica} was started again {times} before, and that is all that --restarts allows"
        return type(error)(error.code, "\n".join([said, *more]), fix=error.fix)

    def _forget(self, replica: int, names: Iterable[str]) -> None:
        """What the lost replica had ended or was about to tell does not count."""
        self._trained = {place for place in self._trained if place[0] != replica}
        for name in names:
            self._told.discard(name)
            self.results.pop(worker_name(*self._places.pop(name)), None)
        if replica == 0:
            self.state.clear()

    def _workers(self, replica: int) -> list[Role]:
        job = self._job
        roles = []
        for machine in range(job.machines):
            setup = WorkerSetup(
                course=job.course,
                replica=replica,
                machine=machine,
                machines=job.machines,
                program=msgspec.msgpack.encode(job.programs[machine]) if job.programs else b"",
                evaluation=msgspec.msgpack.encode(job.evaluations[machine]) if job.programs else b"",
                slices=of_machine(job.slices, machine),
                method=job.options.method,
                rule=job.options.rule,
                times=self._times[replica],
                first=self._first[replica],
            )
            name = worker_name(replica, machine, self._times[replica])
            self._places[name] = replica, machine
            plain = msgspec.to_builtins(setup, builtin_types=(bytes,))
            roles.append(Role(name, WORKER, plain, threads=job.worker_threads, group=f"replica {replica}"))
        return roles

    def _progress(self, place: Place, body: dict[str, Any]) -> None:
        self._done[place] = body["step"]
        if place[0] == 0:
            self.losses.append((body["samples"], body["loss"]))
            self._tell(self._job.options.method.name, body["step"], body["steps"], body["loss"])

    def _back(self, replica: int, seconds: float) -> None:
        """The replica trains again; by its own clock for so many seconds."""
        now = time.monotonic()
        self._ahead_s[replica] = now - self._began - seconds
        last = next(restart for restart in reversed(self.restarts) if restart["replica"] == replica)
        last["seconds"] = now - self._lost_at.pop(replica)

    def _finished(self, place: Place, value: dict[str, Any]) -> None:
        if place[0] in self._lost_at:  # there were no steps left to do
            self._back(place[0], value["seconds"])
        self._trained.add(place)
        self.results[worker_name(*place)] = {**value, "seconds": self._ahead_s[place[0]] + value["seconds"]}

    def _answer(self, launcher: Launcher) -> None:
        """Let replica 0 test once all have trained, and the shards write their files once all have finished."""
        if len(self._trained) < len(self._places):
            return
        for name in [name for name, (replica, _) in self._places.items() if replica == 0 and name not in self._told]:
            self._told.add(name)
            launcher.send(name, Message("all trained", body={"path": self._folder}))
        if len(self.results) == len(self._places) and not self._finishing:
            self._finishing = True
            for name in self.shards:
                launcher.send(name, Message("finish", body={"path": self._folder}))
