"""The processes of a run: what a worker, a shard and the one-process baseline do from their set-up to their result."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from safetensors import safe_open
from torch import Tensor

from ..models.stream import SampleStream
from ..models.task import Data, Task
from ..partition.box import Box
from ..partition.errors import Diverged
from ..ps.client import Client
from ..ps.downpour import Downpour, demand_finite, train
from ..ps.holding import finite
from ..ps.layout import Slice
from ..ps.rule import AnyRule
from ..ps.shard import Shard, serve
from ..runtime.assignment import LAUNCHER
from ..runtime.beacon import Beacon
from ..runtime.channel import Channel
from ..runtime.mailbox import Mailbox
from ..runtime.message import Message
from ..runtime.own_modules import OwnModules
from ..runtime.plain import PlainWorker
from ..runtime.program import Program
from ..runtime.worker import Worker
from .load import TaskSpec, build_model, load_task, read_split
from .weightless import weightless

WORKER, SHARD, BASELINE = (f"cutset.tools.roles:{name}" for name in ("worker", "shard", "baseline"))
WAIT_S = 600.0  # for a message of a peer; the launcher finds a dead or hanging one long before
PATIENCE_S = 7 * 24 * 3600.0  # for other replicas to end their share
REPORT_S = 0.2  # between two progress messages of a worker


class Course(msgspec.Struct, frozen=True):
    """What all trainers of a run share.

    batch: samples of a step; micro_batch: of each of the parts in which a cut model computes it, one after the other.
    steps: of each replica. evaluate_every: steps between two tests, 0 for the end only. initial: file of the first
    weights.
    """

    spec: TaskSpec
    batch: int
    micro_batch: int
    seed: int
    replicas: int
    steps: int
    evaluate_every: int
    initial: str


class WorkerSetup(msgspec.Struct, frozen=True):
    """One worker. program, evaluation: msgpack of its Programs; empty where the model is trained uncut."""

    course: Course
    replica: int
    machine: int
    machines: int
    program: bytes
    evaluation: bytes
    slices: list[Slice]
    method: Downpour
    rule: AnyRule


class ShardSetup(msgspec.Struct, frozen=True):
    """One shard."""

    index: int
    slices: list[Slice]
    rule: AnyRule


class BaselineSetup(msgspec.Struct, frozen=True):
    """The one-process run with the same samples, rule and initial weights."""

    course: Course
    rule: AnyRule


def worker_name(replica: int, machine: int) -> str:
    """The channel name of a worker."""
    return f"worker-{replica}.{machine}"


# Training one machine's part ---------------------------------------------------------------------------------------


class _Trainer(ABC):
    """A cut or an uncut model behind the same face."""

    worker: Worker | PlainWorker

    @property
    def values(self) -> Tensor:
        return self.worker.values

    @property
    def gradients(self) -> Tensor:
        return self.worker.gradients

    def step(self, batch: Data, step: int) -> float | None:
        return self.worker.step(batch, step)

    @abstractmethod
    def correct(self, task: Task, batch: Data, rows: int) -> int | None:
        """Right answers among the first `rows` of a batch; None where another machine has the output."""

    @abstractmethod
    def state(self) -> list[tuple[str, Box | None, Tensor]]:
        """Buffers and frozen parameters, which the shards do not have."""


class _Cut(_Trainer):
    worker: Worker

    def __init__(self, setup: WorkerSetup, task: Task, mailbox: Mailbox, initial: Callable[[str], Tensor]) -> None:
        program = msgspec.msgpack.decode(setup.program, type=Program)
        evaluation = msgspec.msgpack.decode(setup.evaluation, type=Program)
        peers = [worker_name(setup.replica, m) for m in range(setup.machines)]
        # Each replica draws masks of its own.
        own = OwnModules.where_needed([program, evaluation], lambda: weightless(task, seed=setup.course.seed))
        self.worker = Worker(program, mailbox, peers, seed=setup.course.seed + setup.replica, own=own)
        self.worker.states.extend(evaluation)
        self.worker.states.load(initial)
        self._tester = Worker(evaluation, mailbox, peers, states=self.worker.states, tag="test.", own=own)
        self._tests = 0

    def correct(self, task: Task, batch: Data, rows: int) -> int | None:
        self._tests += 1
        pieces = self._tester.predict(batch, self._tests)
        if not pieces:
            return None
        ((box, output),) = pieces
        program = self._tester.program
        info = program.tensors[program.pieces[program.results[0]].tensor]
        output = output.reshape(info.local_shape(box))
        return int(task.correct(output[:rows], *(t[:rows] for t in batch.targets)))

    def state(self) -> list[tuple[str, Box | None, Tensor]]:
        kinds = ("buffer", "frozen")
        states = self.worker.states
        return [(n, box, t) for (n, box), t in states.pieces.items() if states.infos[n].kind in kinds]


class _Uncut(_Trainer):
    worker: PlainWorker

    def __init__(self, course: Course, task: Task, initial: Callable[[str], Tensor], seed: int) -> None:
        model = build_model(task, seed=course.seed)
        with torch.no_grad():
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                tensor.copy_(initial(name))
        self.worker = PlainWorker(model, task.loss, seed=seed)

    def correct(self, task: Task, batch: Data, rows: int) -> int | None:
        output = self.worker.predict(batch)
        return int(task.correct(output[:rows], *(t[:rows] for t in batch.targets)))

    def state(self) -> list[tuple[str, Box | None, Tensor]]:
        frozen = [(n, None, p.detach()) for n, p in self.worker.model.named_parameters() if not p.requires_grad]
        return [*frozen, *((n, None, b) for n, b in self.worker.model.named_buffers())]


def accuracy(trainer: _Trainer, task: Task, test: Data, batch: int) -> float | None:
    """Share of right answers on the test samples, batch by batch, the last one filled up; None without the output."""
    right: int | None = 0
    for start in range(0, len(test), batch):
        index = torch.arange(start, start + batch).clamp(max=len(test) - 1)
        found = trainer.correct(task, test.rows(index), min(batch, len(test) - start))
        right = None if found is None or right is None else right + found
    return None if right is None else right / len(test)


def stored(path: str) -> Callable[[str], Tensor]:
    """Whole tensors by name from a safetensors file, one at a time."""

    def value(name: str) -> Tensor:
        with safe_open(path, framework="pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
            return tensor

    return value


def _warm_up() -> None:
    """The first backward from given gradients makes torch import for half a second: not on the clock of the run."""
    value = torch.zeros(1, requires_grad=True)
    torch.autograd.backward([value * 1], [torch.ones(1)])


Traffic = dict[str, dict[str, int]]  # counts by peer, as Channel.statistics gives them


def _plus(a: Traffic, b: Traffic, sign: int = 1) -> Traffic:
    names = {name: sorted(a.get(name, {}) | b.get(name, {})) for name in sorted(a | b)}
    return {
        peer: {count: a.get(peer, {}).get(count, 0) + sign * b.get(peer, {}).get(count, 0) for count in counts}
        for peer, counts in names.items()
    }


def _minus(a: Traffic, b: Traffic) -> Traffic:
    return _plus(a, b, -1)


class _Log:
    """Tells the launcher how training goes: progress now and then, every test, and the losses at the end."""

    def __init__(self, channel: Channel, beacon: Beacon, course: Course) -> None:
        self.channel, self.beacon, self.course = channel, beacon, course
        self.began = self.told = time.monotonic()
        self.testing_s = 0.0
        self._before, self._tests = channel.statistics(), Traffic()
        self.losses: list[tuple[int, float]] = []
        self.curve: list[dict[str, float]] = []

    def step(self, step: int, loss: float | None) -> None:
        self.beacon.progress = f"step {step}"
        now, last = time.monotonic(), step + 1 == self.course.steps
        if loss is None:
            return
        if now - self.told >= REPORT_S or last:
            self.told = now
            self.losses.append((self._samples(step), loss))
            body = {"step": step + 1, "steps": self.course.steps, "loss": loss}
            self.channel.send(LAUNCHER, Message("progress", step=step, body=body))

    def test(self, step: int, share: Callable[[], float | None]) -> None:
        """Test, and keep the time and the traffic of it apart from those of training."""
        seconds, before, start = self.seconds(), self.channel.statistics(), time.monotonic()
        found = share()
        self.testing_s += time.monotonic() - start
        self._tests = _plus(self._tests, _minus(self.channel.statistics(), before))
        if found is not None:
            self.curve.append({"seconds": seconds, "samples": self._samples(step), "test_accuracy": found})

    def seconds(self) -> float:
        """Seconds of training so far, without the tests."""
        return time.monotonic() - self.began - self.testing_s

    def traffic(self) -> Traffic:
        """What went to and came from each peer for training: without initial values and tests."""
        return _minus(_minus(self.channel.statistics(), self._before), self._tests)

    def due(self, step: int) -> bool:
        every = self.course.evaluate_every
        return every > 0 and (step + 1) % every == 0 and step + 1 < self.course.steps

    def _samples(self, step: int) -> int:
        return (step + 1) * self.course.batch * self.course.replicas


# Roles -------------------------------------------------------------------------------------------------------------


def worker(channel: Channel, setup: Any, beacon: Beacon) -> dict[str, Any]:
    """Train one machine's part of one replica; replica 0 also tests, and sends what the shards do not have."""
    given = msgspec.convert(setup, WorkerSetup)
    course = given.course
    task = load_task(course.spec)
    samples = read_split(task, "train")
    tests = read_split(task, "test") if given.replica == 0 else None
    mailbox = Mailbox(channel, timeout_s=WAIT_S)
    initial = stored(course.initial)
    trainer: _Trainer
    if given.program:
        trainer = _Cut(given, task, mailbox, initial)
    else:
        trainer = _Uncut(course, task, initial, course.seed + given.replica)
    client = Client(mailbox, given.slices, trainer.values, local_rate=given.rule.local_rate)
    if given.replica == 0:
        client.put()
    stream = SampleStream(len(samples), batch=course.batch, seed=course.seed)
    _warm_up()
    log = _Log(channel, beacon, course)

    def after(step: int, loss: float | None, count: int) -> None:
        log.step(step, loss)
        if tests is not None and log.due(step):
            log.test(step, lambda: accuracy(trainer, task, tests, course.micro_batch))

    train(
        given.method,
        trainer,
        client,
        lambda number: samples.rows(stream.indices(number)),
        replica=given.replica,
        replicas=course.replicas,
        steps=range(course.steps),
        report=after,
    )
    seconds, traffic = log.seconds(), log.traffic()
    if tests is not None:
        _finish(channel, mailbox, client, trainer, log, task, tests)
    return {
        "seconds": seconds,
        "losses": log.losses,
        "curve": log.curve,
        "client": client.statistics(),
        "links": traffic,
    }


def _finish(
    channel: Channel, mailbox: Mailbox, client: Client, trainer: _Trainer, log: _Log, task: Task, tests: Data
) -> None:
    """When all replicas have pushed their last, test the parameters that the shards hold."""
    channel.send(LAUNCHER, Message("trained"))
    log.beacon.progress = None  # the others may take long; this is not being stuck
    mailbox.wait([(LAUNCHER, "all trained", 0, 0, 0)], timeout_s=PATIENCE_S)
    client.fetch()
    client.wait()
    log.test(log.course.steps - 1, lambda: accuracy(trainer, task, tests, log.course.micro_batch))
    state = trainer.state()
    names = [[name, box] for name, box, _ in state]
    channel.send(LAUNCHER, Message("state", body={"boxes": names}, tensors=tuple(t.clone() for _, _, t in state)))


def shard(channel: Channel, setup: Any, beacon: Beacon) -> dict[str, Any]:
    """Serve one shard until the launcher says finish."""
    given = msgspec.convert(setup, ShardSetup)
    return serve(Shard(given.index, given.slices, given.rule), channel, beacon=beacon)


def baseline(channel: Channel, setup: Any, beacon: Beacon) -> dict[str, Any]:
    """Train the whole model in this process with the samples of all replicas, one batch after the other."""
    given = msgspec.convert(setup, BaselineSetup)
    course = given.course
    task = load_task(course.spec)
    samples, tests = read_split(task, "train"), read_split(task, "test")
    trainer = _Uncut(course, task, stored(course.initial), course.seed)
    state = given.rule.state(trainer.values)
    stream = SampleStream(len(samples), batch=course.batch, seed=course.seed)
    log = _Log(channel, beacon, course)
    for step in range(course.steps):
        loss = trainer.step(samples.rows(stream.indices(step)), step)
        demand_finite(channel.name, step, loss)
        given.rule.apply(trainer.values, trainer.gradients, state)
        trainer.gradients.zero_()
        log.step(step, loss)
        if log.due(step):
            log.test(step, lambda: accuracy(trainer, task, tests, course.batch))
    seconds = log.seconds()
    if not finite(trainer.values):
        raise Diverged("E703", f"the parameters are not finite after step {course.steps - 1}", fix="a smaller --lr")
    log.test(course.steps - 1, lambda: accuracy(trainer, task, tests, course.batch))
    return {"seconds": seconds, "losses": log.losses, "curve": log.curve}
