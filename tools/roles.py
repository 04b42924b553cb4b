"""The processes of a run: what a worker, a shard and the one-process baseline do from their set-up to their result."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch
from torch import Tensor

from ..models.stream import SampleStream
from ..models.task import Data, Task
from ..partition.errors import Diverged
from ..ps.checkpoint_files import write_state
from ..ps.client import Client
from ..ps.downpour import Downpour, demand_finite, train
from ..ps.holding import finite
from ..ps.layout import Slice
from ..ps.region import Region
from ..ps.rule import AnyRule
from ..ps.shard import Shard, serve
from ..ps.tensor_file import TensorReader
from ..runtime.assignment import LAUNCHER
from ..runtime.beacon import Beacon
from ..runtime.channel import Channel
from ..runtime.mailbox import Mailbox
from ..runtime.message import Message
from ..runtime.own_modules import OwnModules
from ..runtime.plain import PlainWorker
from ..runtime.program import Program
from ..runtime.schedule import DATAFLOW
from ..runtime.states import States
from ..runtime.trace import Trace, warm_steps
from ..runtime.worker import Worker
from .buffer_file import BufferFile
from .load import TaskSpec, build_model, load_task, read_split
from .scoring import right_answers, right_answers_uncut
from .weightless import weightless

WORKER, SHARD, BASELINE = (f"cutset.tools.roles:{name}" for name in ("worker", "shard", "baseline"))
WAIT_S = 600.0  # for a message of a peer; the launcher finds a dead or hanging one long before
PATIENCE_S = 7 * 24 * 3600.0  # for other replicas to end their share
REPORT_S = 0.2  # between two progress messages of a worker
_STEP = "step "
_STEPS_TIMED = 1000  # the last ones


class Course(msgspec.Struct, frozen=True):
    """What all trainers of a run share.

    batch: samples of a step; micro_batch: of each of the parts in which a cut model computes it, one after the other.
    steps: of each replica. evaluate_every: steps between two tests, 0 for the end only. initial: file of the first
    weights. schedule: name of the order in which micro-batches run. clip_norm: the most that the norm of all gradients
    of a step may be, 0 for no limit.
    """

    spec: TaskSpec
    batch: int
    micro_batch: int
    seed: int
    replicas: int
    steps: int
    evaluate_every: int
    initial: str
    schedule: str = DATAFLOW
    clip_norm: float = 0.0


class WorkerSetup(msgspec.Struct, frozen=True):
    """One worker. program, evaluation: msgpack of its Programs; empty where the model is trained uncut.

    times: how often its replica was started again; first: the step that it begins with.
    """

    course: Course
    replica: int
    machine: int
    machines: int
    program: bytes
    evaluation: bytes
    slices: list[Slice]
    method: Downpour
    rule: AnyRule
    times: int = 0
    first: int = 0


class ShardSetup(msgspec.Struct, frozen=True):
    """One shard."""

    index: int
    slices: list[Slice]
    rule: AnyRule


class BaselineSetup(msgspec.Struct, frozen=True):
    """The one-process run with the same samples, rule and initial weights."""

    course: Course
    rule: AnyRule


def worker_name(replica: int, machine: int, times: int = 0) -> str:
    """The channel name of a worker whose replica was started again so many `times`; each time has its own."""
    return f"worker-{replica}.{machine}" + (f"+{times}" if times else "")


def steps_done(progress: int | str | None) -> int:
    """How many steps of the course a worker has done at least, by the last progress that it told."""
    return int(progress.removeprefix(_STEP)) + 1 if isinstance(progress, str) and progress.startswith(_STEP) else 0


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

    def clip(self, most: float, step: int) -> float:
        return self.worker.clip(most, step)

    @abstractmethod
    def right(self, task: Task, data: Data, batch: int) -> int | None:
        """Right answers among samples, batch by batch; None where another machine has the output."""

    @abstractmethod
    def buffers(self) -> list[Tensor]:
        """What training changes besides the parameters: running statistics, say."""

    @abstractmethod
    def state(self) -> list[tuple[Region, Tensor]]:
        """Buffers and frozen parameters, which the shards do not have, and of which whole tensors they are boxes."""


class _Cut(_Trainer):
    worker: Worker

    def __init__(self, setup: WorkerSetup, task: Task, mailbox: Mailbox) -> None:
        program = msgspec.msgpack.decode(setup.program, type=Program)
        evaluation = msgspec.msgpack.decode(setup.evaluation, type=Program)
        peers = [worker_name(setup.replica, m, setup.times) for m in range(setup.machines)]
        # Each replica draws masks of its own.
        own = OwnModules.where_needed([program, evaluation], lambda: weightless(task, seed=setup.course.seed))
        trace = Trace(warm_steps(setup.course.steps) if setup.replica == 0 else range(0))
        seed, order = setup.course.seed + setup.replica, setup.course.schedule
        self.worker = Worker(program, mailbox, peers, seed=seed, order=order, own=own, trace=trace)
        self.worker.states.extend(evaluation)
        _load_boxes(self.worker.states, setup.course.initial)
        self._tester = Worker(evaluation, mailbox, peers, states=self.worker.states, tag="test.", own=own)
        self._tests = 0

    def right(self, task: Task, data: Data, batch: int) -> int | None:
        self._tests += 1
        return right_answers(self._tester, task, data, self._tests)

    def buffers(self) -> list[Tensor]:
        states = self.worker.states
        return [piece for (name, _), piece in states.pieces.items() if states.infos[name].kind == "buffer"]

    def state(self) -> list[tuple[Region, Tensor]]:
        found = []
        for (name, box), tensor in self.worker.states.pieces.items():
            info = self.worker.states.infos[name]
            if info.kind in ("buffer", "frozen"):
                found.append((Region(name, list(info.shape), list(info.extents), list(box), 0), tensor))
        return found


class _Uncut(_Trainer):
    worker: PlainWorker

    def __init__(self, course: Course, task: Task, initial: Callable[[str], Tensor], seed: int) -> None:
        model = build_model(task, seed=course.seed)
        with torch.no_grad():
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                tensor.copy_(initial(name))
        self.worker = PlainWorker(model, task.loss, seed=seed, autocast=course.spec.autocast)

    def right(self, task: Task, data: Data, batch: int) -> int | None:
        return right_answers_uncut(self.worker, task, data, batch)

    def buffers(self) -> list[Tensor]:
        return list(self.worker.model.buffers())

    def state(self) -> list[tuple[Region, Tensor]]:
        model = self.worker.model
        frozen = [(name, p.detach()) for name, p in model.named_parameters() if not p.requires_grad]
        state = [*frozen, *model.named_buffers()]
        return [(Region(name, list(t.shape), list(t.shape), [(0, n) for n in t.shape], 0), t) for name, t in state]


def accuracy(trainer: _Trainer, task: Task, test: Data, batch: int) -> float | None:
    """Share of right answers on the test samples; None without the output."""
    right = trainer.right(task, test, batch)
    return None if right is None else right / len(test)


def stored(path: str) -> Callable[[str], Tensor]:
    """Whole tensors by name from a safetensors file, one at a time."""

    def value(name: str) -> Tensor:
        with TensorReader(path) as reader:
            return reader.tensor(name)

    return value


def _load_boxes(states: States, path: str) -> None:
    """Fill every piece from the file of whole tensors, of which little more than the piece is read."""
    with TensorReader(path) as reader:
        for (name, box), piece in states.pieces.items():
            reader.fill(piece.detach(), name, states.infos[name].extents, box)


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
    """Tells the launcher how training goes: progress with the loss now and then, and every test.

    waited: the seconds that this process has waited for others so far.
    """

    def __init__(
        self, channel: Channel, beacon: Beacon, course: Course, waited: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.channel, self.beacon, self.course, self.waited = channel, beacon, course, waited
        self.began = self.told = time.monotonic()
        self._work_s = deque[float](maxlen=_STEPS_TIMED)
        self._step_began = self.began - waited()
        self.testing_s = 0.0
        self._before, self._tests = channel.statistics(), Traffic()
        self.losses: list[tuple[int, float]] = []
        self.curve: list[dict[str, float]] = []

    def step(self, step: int, loss: float | None) -> None:
        self.beacon.progress = f"{_STEP}{step}"
        now, last = time.monotonic(), step + 1 == self.course.steps
        self._work_s.append(now - self.waited() - self._step_began)
        self._step_began = now - self.waited()
        if loss is None:
            return
        if now - self.told >= REPORT_S or last:
            self.told = now
            self.losses.append((self._samples(step), loss))
            body = {"step": step + 1, "steps": self.course.steps, "loss": loss}
            body |= {"samples": self._samples(step), "seconds": self.seconds()}
            self.channel.send(LAUNCHER, Message("progress", step=step, body=body))

    def test(self, step: int, share: Callable[[], float | None]) -> None:
        """Test, and keep the time and the traffic of it apart from those of training."""
        seconds, before, start = self.seconds(), self.channel.statistics(), time.monotonic()
        progress, self.beacon.progress = self.beacon.progress, None  # a test may take long; this is not being stuck
        found = share()
        self.beacon.progress = progress
        self.testing_s += time.monotonic() - start
        self._tests = _plus(self._tests, _minus(self.channel.statistics(), before))
        if found is not None:
            self.curve.append({"seconds": seconds, "samples": self._samples(step), "test_accuracy": found})
            self.channel.send(LAUNCHER, Message("tested", step=step, body=dict(self.curve[-1])))
        self._step_began = time.monotonic() - self.waited()

    def step_s(self) -> float | None:
        """Median seconds of this process's own work in a step, without what it waited for others."""
        return median(self._work_s) if self._work_s else None

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
    trainer: _Trainer
    if given.program:
        trainer = _Cut(given, task, mailbox)
    else:
        trainer = _Uncut(course, task, stored(course.initial), course.seed + given.replica)
    client = Client(mailbox, given.slices, trainer.values, local_rate=given.rule.local_rate)
    if given.replica == 0:
        client.put()
    stream = SampleStream(len(samples), batch=course.batch, seed=course.seed)
    _warm_up()
    log = _Log(channel, beacon, course, lambda: mailbox.waited_s)

    place = f"buffers-{given.replica}.{given.machine}.safetensors"
    memory = BufferFile(trainer.buffers(), Path(course.initial).with_name(place), again=given.times > 0)

    def after(step: int, loss: float | None, count: int) -> None:
        log.step(step, loss)
        memory.keep()
        if tests is not None and log.due(step):
            log.test(step, lambda: accuracy(trainer, task, tests, course.micro_batch))

    train(
        given.method,
        trainer,
        client,
        lambda number: samples.rows(stream.indices(number)),
        replica=given.replica,
        replicas=course.replicas,
        steps=range(given.first, course.steps),
        report=after,
        clip=(lambda step: trainer.clip(course.clip_norm, step)) if course.clip_norm else None,
    )
    seconds, traffic = log.seconds(), log.traffic()
    memory.keep(now=True)
    if tests is not None:
        _finish(channel, mailbox, client, trainer, log, task, tests, given.machine)
    return {
        "seconds": seconds,
        "steps": course.steps - given.first,
        "step_s": log.step_s(),
        "client": client.statistics(),
        "links": traffic,
        "spans": trainer.worker.trace.whole() if isinstance(trainer, _Cut) else [],
    }


def _finish(
    channel: Channel,
    mailbox: Mailbox,
    client: Client,
    trainer: _Trainer,
    log: _Log,
    task: Task,
    tests: Data,
    machine: int,
) -> None:
    """When all replicas have pushed their last, test the parameters that the shards hold, and save what they lack."""
    channel.send(LAUNCHER, Message("trained"))
    log.beacon.progress = None  # the others may take long; this is not being stuck
    told = mailbox.wait([(LAUNCHER, "all trained", 0, 0, 0)], timeout_s=PATIENCE_S)
    client.fetch()
    client.wait()
    log.test(log.course.steps - 1, lambda: accuracy(trainer, task, tests, log.course.micro_batch))
    file = write_state(told.body["path"], machine, trainer.state())
    channel.send(LAUNCHER, Message("state", body={"file": msgspec.to_builtins(file)}))


def shard(channel: Channel, setup: Any, beacon: Beacon) -> dict[str, Any]:
    """Serve one shard until the launcher says finish."""
    given = msgspec.convert(setup, ShardSetup)
    return serve(Shard(given.index, given.slices, given.rule), channel, beacon=beacon, timeout_s=PATIENCE_S)


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
        if course.clip_norm:
            trainer.clip(course.clip_norm, step)
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
