"""`Supervisor`: what a run of replicas and shards is made of, what its roles tell, and what follows where one is lost.

A replica that was lost is started again under new names: it fetches its parameters from the shards and goes on after
the last step that it is known to have done, while the other replicas train. Steps that it made after its last beacon
are made again, at most half a second of them. Its buffers are those that its workers kept last (buffer_file.py).

Where batches are leased (handing_out.py), those that it had go to whoever asks next, it is not waited for when all else
is done, and replicas join and leave as the user wishes (scaling.py).
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from ...ps.checkpoint.manifest import StateFile
from ...runtime.launcher.liveness import Loss
from ...runtime.launcher.launcher import Launcher, Role
from ...runtime.channel.message import Message
from .checkpoint_sets import Checkpoints
from ..job.run_config import worker_name
from .elastic_replicas import Elasticity
from .lease_server import Place
from ..job.prepare import Prepared
from .roles import WORKER
from ..job.export_weights import CHECKPOINT
from .scale_requests import Wishes
from .shard_supervisor import Servers, final
from .progress_log import steps_done
from ..job.job import worker_setup

Tell = Callable[[str, int, int, float], None]  # run, step, steps, loss
Note = Callable[[str], None]


@dataclass
class _Absence:
    """Of a replica that does not train yet. record: is told for how many "seconds" in the end."""

    since: float
    record: dict[str, Any]


class Supervisor:
    """Follows one run. tell: progress of replica 0; note: is told in words of every restart, and who joins or leaves.

    wishes: for more or fewer replicas.
    """

    def __init__(self, job: Prepared, *, tell: Tell, note: Note, wishes: Wishes | None = None) -> None:
        self._job, self._tell, self._note = job, tell, note
        self._most = job.options.restarts
        self._checkpoints = Checkpoints(job, note=note)
        self._servers = Servers(job, note=note)
        self._began = time.monotonic()
        self._times = Counter[int]()  # how often each replica was started again
        self._first = Counter[int]()  # the step that it began with then
        self._done: dict[Place, int] = {}  # steps that each worker has said it had done
        self._ahead_s = dict[int, float]()  # what the clock of a replica, which began with it, lacks
        self._absent: dict[int, _Absence] = {}  # replicas that do not train yet
        self._unsaid: list[int] = []  # replicas that are gone, of which the shards do not know
        self._elastic = Elasticity(job, note=note, wishes=wishes)
        self._places: dict[str, Place] = {}
        self._trained: set[Place] = set()
        self._told: set[str] = set()
        self._set_up: set[str] = set()  # workers that could train
        self._going: set[str] = set()  # those that were let go
        self._under_way = False
        self._finishing = False
        self.results: dict[str, Any] = {}  # what each worker returned, by the name that it had at first
        self.state: list[StateFile] = []
        self.curve: list[dict[str, float]] = []
        self.losses: list[tuple[int, float]] = []
        self.restarts: list[dict[str, Any]] = []

    @property
    def shards(self) -> list[str]:
        """The names of the shards."""
        return self._servers.names

    @property
    def spares(self) -> list[str]:
        """Names that workers and shards may get when they are started again, or join."""
        return [*self._elastic.spares, *self._servers.spares]

    @property
    def replicas_most(self) -> int:
        """More than the number of any replica that there can be."""
        return self._elastic.numbers.stop

    @property
    def shares(self) -> dict[str, Any]:
        """Who took how many batches, and who joined and left."""
        return self._elastic.statistics()

    @property
    def shard_restarts(self) -> list[dict[str, Any]]:
        """Shards that were started again."""
        return self._servers.restarts

    @property
    def _folder(self) -> str:
        """Where shards and workers write the checkpoint."""
        return str((self._job.options.out / CHECKPOINT).resolve())

    def roles(self) -> list[Role]:
        """All roles as the run begins."""
        return self._servers.roles() + [role for replica in self._elastic.replicas for role in self._workers(replica)]

    def began(self) -> None:
        """All roles were told to start."""
        self._began = self._elastic.began = time.monotonic()
        self._elastic.stand()

    def watch(self, launcher: Launcher) -> None:
        """Start who shall join, and end who is not needed any more."""
        for replica, record in self._elastic.joining():
            self._absent[replica] = _Absence(time.monotonic(), record)
            launcher.add(self._workers(replica))
        for replica in self._elastic.needless(self._absent):
            names = [name for name, place in self._places.items() if place[0] == replica]
            launcher.dismiss(names)
            self._forget(replica, names)
            self._unsaid.append(replica)
        while self._unsaid:
            self._says_for(self._unsaid.pop(), launcher)
        self._answer(launcher)

    def _says_for(self, replica: int, launcher: Launcher) -> None:
        """Tell the shards that a replica takes part no more, which it could not say itself: others may wait for it."""
        names = self.shards
        for piece in self._job.slices:
            body = {"replica": replica, "number": 0}
            launcher.send(names[piece.shard], Message("leave", edge=piece.number, body=body))

    def take(self, message: Message, launcher: Launcher) -> None:
        """Take in what a role says, and answer it."""
        self._checkpoints.take(message)
        if self._servers.take(message, launcher):
            return
        place = self._places.get(message.sender)
        if place is None:
            return
        if message.kind in ("progress", "tested") and place[0] in self._absent:
            self._back(place[0], message.body["seconds"])
        self._elastic.take(place, message)
        match message.kind:
            case "progress":
                self._progress(place, message.body)
                self._ask_for_checkpoint(message, launcher)
            case "tested" if place[0] == 0:
                seconds = self._ahead_s.get(0, 0.0) + message.body["seconds"]
                self.curve.append({**message.body, "samples": self._reached(message.body), "seconds": seconds})
            case "state" if place[0] == 0:
                self.state.append(msgspec.convert(message.body["file"], StateFile))
            case "set up":
                self._set_up.add(message.sender)
            case "trained":
                self._trained.add(place)
            case "finished":
                self._finished(place, message.body["value"])
        self._answer(launcher)

    def renew(self, loss: Loss) -> list[Role]:
        """What takes the place of a shard or of a replica's workers; its error where it was lost too often.

        None where it is not needed any more.
        """
        self._checkpoints.timing.interrupted()
        servers = self._servers.renew(loss)
        if servers is not None:
            return servers
        replica = next(self._places[name][0] for name in loss.progress)
        if not self._elastic.lost(replica, [(self._places[name], told) for name, told in loss.progress.items()]):
            self._forget(replica, loss.progress)
            self._elastic.left(replica)
            self._unsaid.append(replica)
            return []
        # A machine may be ahead of those that it sends to.
        done = min(max(steps_done(p), self._done.get(self._places[name], 0)) for name, p in loss.progress.items())
        if any(place[0] == replica for place in self._trained):
            done = self._job.course.steps
        if self._times[replica] == self._most:
            raise final(loss.error, f"replica {replica}", self._most)
        self._times[replica] += 1
        self._first[replica] = max(self._first[replica], done)
        self._forget(replica, loss.progress)
        why, first = loss.error.facts.partition("\n")[0], self._first[replica]
        self.restarts.append({"replica": replica, "step": first, "code": loss.error.code, "why": why, "seconds": None})
        self._absent[replica] = _Absence(time.monotonic(), self.restarts[-1])
        self._note(f"replica {replica} starts again at step {first}: {why}")
        return self._workers(replica)

    def _forget(self, replica: int, names: Iterable[str]) -> None:
        """What the lost replica had ended or was about to tell does not count."""
        self._trained = {place for place in self._trained if place[0] != replica}
        self._absent.pop(replica, None)
        for name in names:
            self._servers.gone(name)
            self._told.discard(name)
            self._set_up.discard(name)
            self.results.pop(worker_name(*self._places.pop(name)), None)
        if replica == 0:
            self.state.clear()

    def _workers(self, replica: int) -> list[Role]:
        job = self._job
        self._elastic.starts(replica, self._times[replica])
        roles = []
        for machine in range(job.machines):
            setup = worker_setup(job, replica, machine, self._times[replica], self._first[replica])
            name = worker_name(replica, machine, self._times[replica])
            self._places[name] = replica, machine
            plain = msgspec.to_builtins(setup, builtin_types=(bytes,))
            group = "" if job.options.method.together else f"replica {replica}"  # without one its loss ends the run
            roles.append(Role(name, WORKER, plain, threads=job.worker_threads, group=group))
        return roles

    def _progress(self, place: Place, body: dict[str, Any]) -> None:
        self._done[place] = body["step"]
        if place[0] == 0:
            samples, course = self._reached(body), self._job.course
            self.losses.append((samples, body["loss"]))
            leased = (samples // course.batch, course.batches)
            at, of = leased if self._elastic.leased else (body["step"], body["steps"])
            self._tell(self._job.options.method.name, at, of, body["loss"])

    def _ask_for_checkpoint(self, progress: Message, launcher: Launcher) -> None:
        """Where checkpoints go by time: ask all who make a part of one, if it is due."""
        asked = [name for name, (replica, _) in self._places.items() if replica == 0]
        if progress.sender in asked and self._servers.all_serve:
            batches = self.losses[-1][0] // self._job.course.batch
            number = self._checkpoints.timing.progress(batches, progress.body["seconds"])
            for name in [*asked, *self.shards] if number is not None else []:
                launcher.send(name, Message("checkpoint", body={"checkpoint": number}))

    def _reached(self, body: dict[str, Any]) -> int:
        """Samples that replica 0 tells of; never fewer than before, though it may be given batches that were lost."""
        before = [samples for samples, _ in self.losses[-1:]] + [int(point["samples"]) for point in self.curve[-1:]]
        return max([int(body["samples"]), *before]) if self._elastic.leased else int(body["samples"])

    def _back(self, replica: int, seconds: float) -> None:
        """The replica trains, for the first time or again; by its own clock for so many seconds."""
        now, absence = time.monotonic(), self._absent.pop(replica)
        self._ahead_s[replica] = now - self._began - seconds
        absence.record["seconds"] = now - absence.since
        self._elastic.trains(absence.record)

    def _finished(self, place: Place, value: dict[str, Any]) -> None:
        if place[0] in self._absent:  # there were no steps left to do
            self._back(place[0], value["seconds"])
        self._trained.add(place)
        seconds = self._ahead_s.get(place[0], 0.0) + value["seconds"]
        self.results[worker_name(*place)] = {**value, "seconds": seconds}
        if self._elastic.leaving(place[0]) and not self._at_work(place[0]):
            self._elastic.left(place[0])

    def _at_work(self, replica: int) -> bool:
        """Whether some machine of it trains."""
        return any(place[0] == replica and place not in self._trained for place in self._places.values())

    def _let_go(self, launcher: Launcher) -> None:
        """Let workers train: at first all at once, when all are set up; who starts later, at once."""
        if not self._under_way:
            if not self._set_up >= self._places.keys():
                return
            self._under_way = True
            self._began = self._elastic.began = time.monotonic()
        for name in sorted(self._set_up - self._going):
            self._going.add(name)
            launcher.send(name, Message("go"))

    def _answer(self, launcher: Launcher) -> None:
        """Answer who asks for batches; let replica 0 test once all have trained, and the shards write their files once
        all have finished."""
        self._let_go(launcher)
        for name, answer in self._elastic.answers():
            launcher.send(name, answer)
        if len(self._trained) < len(self._places):
            return
        for name in [name for name, (replica, _) in self._places.items() if replica == 0 and name not in self._told]:
            self._told.add(name)
            launcher.send(name, Message("all trained", body={"path": self._folder}))
        if len(self.results) == len(self._places) and not self._finishing:
            self._finishing = True
            for name in self.shards:
                launcher.send(name, Message("finish", body={"path": self._folder}))
