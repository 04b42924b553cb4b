"""`Training`: what one worker of a run does, from its set-up to its result."""

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from ...models.sample_stream import SampleStream
from ...models.task import Data
from ...ps.checkpoint.write_checkpoint import write_state
from ...ps.client.client import Client
from ...ps.methods.training_loop import Share
from ...runtime.launcher.assignment import LAUNCHER
from ...runtime.launcher.heartbeat import Beacon
from ...runtime.channel.channel import Channel
from ...runtime.channel.mailbox import Mailbox
from ...runtime.channel.message import Message
from .buffer_file import BufferFile, buffer_path
from ..job.run_config import WorkerSetup
from ..task.load_task import load_task, read_split
from .replica_state import StateKeeping, tell_unsaved
from .trainer import CutTrainer, Trainer, UncutTrainer, accuracy, memories
from .progress_log import TrainingLog
from .batch_assignment import PATIENCE_S, InTurn, Leased, Turns

WAIT_S = 600.0  # for a message of a peer; the launcher finds a dead or hanging one long before


class Training:
    """One machine's part of one replica. Replica 0 also tests, and writes what the shards do not have."""

    def __init__(self, channel: Channel, given: WorkerSetup, beacon: Beacon) -> None:
        self._channel, self._given, self._course, self._beacon = channel, given, given.course, beacon
        self._task = load_task(self._course.spec)
        self._samples = read_split(self._task, "train")
        self._tests = read_split(self._task, "test") if given.replica == 0 else None
        self._mailbox = Mailbox(channel, timeout_s=WAIT_S)
        channel.send(LAUNCHER, Message("began"))
        self._trainer = self._made_trainer()
        self._client = self._made_client()
        self._stream = SampleStream(len(self._samples), batch=self._course.batch, seed=self._course.seed)
        _warm_up()
        channel.send(LAUNCHER, Message("set up"))  # so that nobody's clock counts what others take for that
        self._mailbox.wait([(LAUNCHER, "go", 0, 0, 0)], timeout_s=WAIT_S)
        self._log = TrainingLog(channel, beacon, self._course, lambda: self._mailbox.waited_s)
        place = buffer_path(Path(self._course.initial).parent, given.replica, given.machine)
        unsaved = partial(tell_unsaved, channel)
        self._memory = BufferFile(self._trainer.buffers(), place, again=given.times > 0, unsaved=unsaved)
        state = self._trainer.state
        self._checkpoints = StateKeeping(self._mailbox, self._course, given.machine, state, first=given.first)
        self._turns = self._made_turns()

    def run(self) -> dict[str, Any]:
        """Train until nothing is left to do; the worker's result."""
        more = True
        while more:
            self._given.method.train(self._share())
            seconds, traffic = self._log.seconds(), self._log.traffic()
            self._memory.keep(now=True)
            self._beacon.progress = None  # the others may take long; this is not being stuck
            more = self._turns.more()
        if self._tests is not None:
            self._finish(self._tests)
        return {
            "seconds": seconds,
            "steps": self._log.steps,
            "step_s": self._log.step_s(),
            "client": self._client.statistics(),
            "links": traffic | self._client.elsewhere,
            "spans": self._trainer.worker.trace.whole() if isinstance(self._trainer, CutTrainer) else [],
        }

    def _made_trainer(self) -> Trainer:
        if self._given.program:
            return CutTrainer(self._given, self._task, self._mailbox)
        return UncutTrainer(self._course, self._task, self._course.seed + self._given.replica)

    def _made_client(self) -> Client:
        """The client; replica 0's has put the values that training begins with."""
        given, values = self._given, self._trainer.values
        client = Client(
            self._mailbox,
            given.slices,
            values,
            local_rate=given.method.local_rate(given.rule),
            replica=given.replica,
            initial=given.times == 0 and given.first == 0,
            compression=given.compression,
        )
        if given.replica == 0:
            client.put(self._course.version, memories(self._course.memories, given.regions, values))
        return client

    def _made_turns(self) -> Turns:
        given = self._given
        if given.method.leased:
            first = given.method.enter(self._client, given.first)
            return Leased(self._mailbox, first, lambda: self._client.settled)
        return InTurn(self._course, given.replica, given.first)

    def _share(self) -> Share[Data]:
        """What the method trains on until the turns say that there is no more for now."""
        trainer, most = self._trainer, self._course.clip_norm
        share: Share[Data] = Share(
            trainer,
            self._client,
            self._given.rule,
            self._batch,
            replicas=self._course.replicas,
            first=self._turns.first,
            clip=(lambda step: trainer.clip(most, step)) if most else None,
            agree=trainer.agree,
            report=lambda step, loss, count: self._after(step, loss, last=share.last),
            gradient=trainer.gradient,
        )
        return share

    def _batch(self, step: int) -> Data | None:
        number = self._turns.number(step)
        return None if number is None else self._samples.rows(self._stream.indices(number))

    def _after(self, step: int, loss: float | None, *, last: bool) -> None:
        """A step was made: it is logged, and what is due follows."""
        reached = self._turns.reached(step)
        settled = self._client.settled if self._given.method.leased else None
        self._log.step(step, loss, reached=reached, settled=settled, last=last)
        self._memory.keep()
        if self._given.replica == 0:
            self._checkpoints.reached(reached)
        if self._tests is not None and self._log.due():
            self._test(step, self._tests)

    def _test(self, step: int, tests: Data) -> None:
        self._log.test(step, lambda: accuracy(self._trainer, self._task, tests, self._course.micro_batch))

    def _finish(self, tests: Data) -> None:
        """When all replicas have pushed their last, test what the shards hold, and save what they lack."""
        self._tell("trained", {})
        told = self._mailbox.wait([(LAUNCHER, "all trained", 0, 0, 0)], timeout_s=PATIENCE_S)
        self._client.fetch()
        self._client.wait()
        self._log.all_trained()
        self._test(self._course.steps - 1, tests)
        file = write_state(told.body["path"], self._given.machine, self._trainer.state())
        self._tell("state", {"file": msgspec.to_builtins(file)})

    def _tell(self, kind: str, body: dict[str, Any]) -> None:
        self._channel.send(LAUNCHER, Message(kind, body=body))


def _warm_up() -> None:
    """The first backward from given gradients makes torch import for half a second: not on the clock of the run."""
    value = torch.zeros(1, requires_grad=True)
    torch.autograd.backward([value * 1], [torch.ones(1)])
