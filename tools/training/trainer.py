"""`Trainer`: what a process of a run trains, one machine's part of a cut model or a whole one, behind the same face."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from ...models.task import Data, Task
from ...ps.slices.region import Region
from ...ps.checkpoint.streamed_safetensors import TensorReader
from ...runtime.worker.flat_gradient import Gradient
from ...runtime.channel.mailbox import Mailbox
from ...runtime.worker.leaf_modules import OwnModules
from ...runtime.worker.uncut_worker import PlainWorker
from ...runtime.worker.program import Program
from ...runtime.worker.flat_parameters import States
from ...runtime.worker.trace import Trace, warm_steps
from ...runtime.worker.worker import Worker
from ..task import weight_source as weights
from ..job.run_config import Course, WorkerSetup, worker_name
from ..task.load_task import build_model
from .accuracy import right_answers, right_answers_uncut
from ..task.meta_model import weightless


class Trainer(ABC):
    """A cut or an uncut model."""

    worker: Worker | PlainWorker

    @property
    def values(self) -> Tensor:
        """The parameters, flat."""
        return self.worker.values

    @property
    def gradients(self) -> Tensor:
        """Theirs, as flat."""
        return self.worker.gradients

    def move(self, values: Tensor) -> None:
        """Hold the parameters in another flat buffer from now on."""
        self.worker.move(values)

    @property
    def gradient(self) -> Gradient:
        """The same; it knows which rows of tables were touched, where the model is not cut."""
        return self.worker.gradient if isinstance(self.worker, PlainWorker) else Gradient(self.gradients)

    def step(self, batch: Data, step: int) -> float | None:
        """Add the gradients of a batch; its loss, None where another machine has it."""
        return self.worker.step(batch, step)

    def clip(self, most: float, step: int) -> float:
        """Scale the gradients to this norm at most; the norm that they had."""
        return self.worker.clip(most, step)

    def agree(self, number: int, step: int) -> int:
        """The number that machine 0 of the replica has said."""
        return self.worker.agree(number, step) if isinstance(self.worker, Worker) else number

    @abstractmethod
    def right(self, task: Task, data: Data, batch: int) -> int | None:
        """Right answers among samples, batch by batch; None where another machine has the output."""

    @abstractmethod
    def buffers(self) -> list[Tensor]:
        """What training changes besides the parameters: running statistics, say."""

    @abstractmethod
    def state(self) -> list[tuple[Region, Tensor]]:
        """Buffers and frozen parameters, which the shards do not have, and of which whole tensors they are boxes."""


class CutTrainer(Trainer):
    """One machine's part of a cut model."""

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


class UncutTrainer(Trainer):
    """A whole model in plain torch. seed: of what it draws."""

    worker: PlainWorker

    def __init__(self, course: Course, task: Task, seed: int) -> None:
        model, initial = build_model(task, seed=course.seed), Path(course.initial)
        with weights.opened(initial) as found:
            weights.load_whole(model, found, where=initial)
        autocast, tables = course.spec.autocast, course.tables
        self.worker = PlainWorker(model, task.loss, seed=seed, autocast=autocast, tables=tables)

    def right(self, task: Task, data: Data, batch: int) -> int | None:
        return right_answers_uncut(self.worker, task, data, batch)

    def buffers(self) -> list[Tensor]:
        return list(self.worker.model.buffers())

    def state(self) -> list[tuple[Region, Tensor]]:
        model = self.worker.model
        frozen = [(name, p.detach()) for name, p in model.named_parameters() if not p.requires_grad]
        state = [*frozen, *model.named_buffers()]
        return [(Region(name, list(t.shape), list(t.shape), [(0, n) for n in t.shape], 0), t) for name, t in state]


def accuracy(trainer: Trainer, task: Task, test: Data, batch: int) -> float | None:
    """Share of right answers on the test samples; None without the output."""
    right = trainer.right(task, test, batch)
    return None if right is None else right / len(test)


def _load_boxes(states: States, path: str) -> None:
    """Fill every piece from the file of whole tensors, of which little more than the piece is read."""
    with TensorReader(path) as reader:
        for (name, box), piece in states.pieces.items():
            reader.fill(piece.detach(), name, states.infos[name].extents, box)


def memories(files: Mapping[str, str], regions: Sequence[Region], values: Tensor) -> dict[str, Tensor]:
    """What the rule remembers of a machine's parameters [n], by name, from files of whole tensors."""
    found = {}
    for name, path in files.items():
        found[name] = torch.zeros_like(values)
        with TensorReader(path) as reader:
            for region in regions:
                part = found[name][region.offset : region.stop].view(region.sizes)
                reader.fill(part, region.name, region.axes, tuple(region.box))
    return found
