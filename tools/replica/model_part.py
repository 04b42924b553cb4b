"""`ModelPart`: what a worker process computes on - one machine's part of a cut model, or a whole model."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from ...errors import BadInput, CutsetError
from ...models.task import Data, Task
from ...ps.checkpoint.streamed_safetensors import TensorReader
from ...ps.slices.region import Region
from ...runtime.channel.mailbox import Mailbox
from ...runtime.hosts.failure_report import out_of_memory_error
from ...runtime.replica.sized_workers import SizedWorkers
from ...runtime.worker.flat_gradient import FlatGradient
from ...runtime.worker.flat_parameters import FlatParameters
from ...runtime.worker.leaf_modules import LeafModules
from ...runtime.worker.program import Program
from ...runtime.worker.trace import Trace, pick_steps
from ...runtime.worker.uncut_worker import FlatModel, UncutWorker
from ...runtime.worker.worker import Worker
from ..blame import describe_error, locate
from ..job.process_specs import TrainingSpec, WorkerSpec, worker_name
from ..samples.dataset_samples import Samples
from ..task import weight_source as weights
from ..task.load_task import build_model
from ..task.meta_model import build_step
from ..task.scores import Scores, score, score_uncut


class ModelPart(ABC):
    """A cut or an uncut model: its flat parameters [n], and what computes their gradients."""

    worker: Worker | FlatModel

    @property
    def values(self) -> Tensor:
        """The parameters as one flat tensor [n]."""
        return self.worker.values

    @property
    def gradients(self) -> Tensor:
        """The gradients of the parameters as one flat tensor [n]."""
        return self.worker.gradients

    def move(self, values: Tensor) -> None:
        """Keep the parameters in another flat tensor [n] from now on."""
        self.worker.move(values)

    @property
    def gradient(self) -> FlatGradient:
        """The gradients; for an uncut model with the embedding rows that a step touches."""
        return self.worker.gradient if isinstance(self.worker, UncutWorker) else FlatGradient(self.gradients)

    @abstractmethod
    def step(self, batch: Data, step: int) -> float | None:
        """Add the gradients of a batch; return its loss, None where another machine has it."""

    @abstractmethod
    def clip(self, max_norm: float, step: int) -> float:
        """Scale the gradients of the whole model down to a norm of at most `max_norm`; return their norm before."""

    def agree(self, number: int, step: int) -> int:
        """Return the number of machine 0 of the replica; all its machines must call this."""
        return self.worker.broadcast(number, step) if isinstance(self.worker, Worker) else number

    @abstractmethod
    def score(self, task: Task, data: Samples, batch: int) -> Scores | None:
        """Return the scores on samples, computed batch by batch; None where another machine has the output."""

    def recorded_steps(self) -> list[Any]:
        """Return what was recorded of the time of some steps; nothing of a whole model."""
        return self.worker.trace.complete_steps() if isinstance(self.worker, Worker) else []

    def trained(self, regions: Sequence[Region]) -> list[tuple[Region, Tensor]]:
        """Return the trained parameters, which lie in the flat tensor in these regions."""
        return [(region, self.values[region.offset : region.stop].view(region.sizes)) for region in regions]

    @abstractmethod
    def buffers(self) -> list[Tensor]:
        """Return what training changes besides the parameters, such as running statistics."""

    @abstractmethod
    def state(self) -> list[tuple[Region, Tensor]]:
        """Return buffers and frozen parameters, which the shards lack, and which boxes of whole tensors they are."""


class CutModelPart(ModelPart):
    """One machine's part of a cut model. Each replica draws its own dropout masks."""

    worker: Worker

    def __init__(self, setup: WorkerSpec, task: Task, mailbox: Mailbox) -> None:
        programs, evaluations = (
            [msgspec.msgpack.decode(program, type=Program) for program in encoded]
            for encoded in (setup.programs, setup.evaluations)
        )
        peers = [worker_name(setup.replica, m, setup.incarnation) for m in range(setup.machines)]
        whole_step = partial(build_step, task, seed=setup.training.seed)
        leaf_modules = LeafModules.where_needed([*programs, *evaluations], whole_step)
        steps = pick_steps(setup.start_step, setup.training.steps) if setup.replica == 0 else []
        seed, order = setup.training.seed + setup.replica, setup.training.schedule
        self._workers = SizedWorkers(
            programs, mailbox, peers, seed=seed, order=order, leaf_modules=leaf_modules, trace=Trace(steps)
        )
        self.worker = self._workers.first
        states = self.worker.states
        self._testers = SizedWorkers(evaluations, mailbox, peers, states=states, tag="test.", leaf_modules=leaf_modules)
        _load_boxes(states, setup.training.initial)
        self._tests, self._autocast = 0, setup.training.task.autocast

    def step(self, batch: Data, step: int) -> float | None:
        with _blame_batch(step):
            return self._workers.step(batch, step)

    def clip(self, max_norm: float, step: int) -> float:
        return self.worker.clip(max_norm, step)

    def score(self, task: Task, data: Samples, batch: int) -> Scores | None:
        self._tests += 1
        return score(self._testers, task, data, self._tests, autocast=self._autocast)

    def buffers(self) -> list[Tensor]:
        states = self.worker.states
        return [piece for (name, _), piece in states.pieces.items() if states.infos[name].kind == "buffer"]

    def state(self) -> list[tuple[Region, Tensor]]:
        state = []
        for (name, box), tensor in self.worker.states.pieces.items():
            info = self.worker.states.infos[name]
            if info.kind in ("buffer", "frozen"):
                state.append((Region(name, list(info.shape), list(info.extents), list(box), 0), tensor))
        return state


class WholeModelPart(ModelPart):
    """A model that is not cut."""

    worker: FlatModel

    def buffers(self) -> list[Tensor]:
        return list(self.worker.model.buffers())

    def state(self) -> list[tuple[Region, Tensor]]:
        model, trained = self.worker.model, self.worker.parameters
        frozen = [(name, p.detach()) for name, p in model.named_parameters() if name not in trained]
        state = [*frozen, *model.named_buffers()]
        return [(Region(name, list(t.shape), list(t.shape), [(0, n) for n in t.shape], 0), t) for name, t in state]


class UserModelPart(WholeModelPart):
    """A model that the user's own loop trains: it puts its gradients into `gradients`.

    trained: names of the parameters that it trains. initial: the file of the first weights.
    """

    def __init__(self, model: nn.Module, trained: Collection[str], initial: Path) -> None:
        with weights.open_weights(initial) as source:
            weights.load_model(model, source, where=initial)
        self.worker = FlatModel(model, trained)

    def step(self, batch: Data, step: int) -> float | None:
        raise NotImplementedError("the user's own loop computes the gradients")

    def clip(self, max_norm: float, step: int) -> float:
        raise NotImplementedError("the user's own loop clips the gradients")

    def score(self, task: Task, data: Samples, batch: int) -> Scores | None:
        raise NotImplementedError("the user's own loop evaluates")


@contextmanager
def _blame_batch(step: int) -> Iterator[None]:
    """Make BadInput of what the model or the loss raises in a step, but not of what its machine lacks."""
    try:
        yield
    except (CutsetError, OSError):
        raise
    except Exception as error:
        if out_of_memory_error(error, "") is not None:
            raise
        facts = f"the model or the loss fails on the batch of step {step}{locate(error)}: {describe_error(error)}"
        raise BadInput("E314", facts, fix="correct it there, or the samples: others did before") from error


class UncutModelPart(WholeModelPart):
    """A whole model in plain torch. seed: of the random numbers that it draws."""

    worker: UncutWorker

    def __init__(self, training: TrainingSpec, task: Task, seed: int) -> None:
        model, initial = build_model(task, seed=training.seed), training.initial
        with weights.open_weights(initial) as source:
            weights.load_model(model, source, where=initial)
        autocast, tables = training.task.autocast, training.tables
        self.worker = UncutWorker(model, task.loss, seed=seed, autocast=autocast, tables=tables)

    def step(self, batch: Data, step: int) -> float | None:
        with _blame_batch(step):
            return self.worker.step(batch, step)

    def clip(self, max_norm: float, step: int) -> float:
        return self.worker.clip(max_norm, step)

    def score(self, task: Task, data: Samples, batch: int) -> Scores | None:
        return score_uncut(self.worker, task, data, batch)


def _load_boxes(states: FlatParameters, path: Path) -> None:
    """Fill every piece from a file of whole tensors, reading little more than the piece."""
    with TensorReader(path) as reader:
        for (name, box), piece in states.masters().items():
            reader.fill(piece, name, states.infos[name].extents, box)
    states.refresh()


def read_optimizer_state(training: TrainingSpec, regions: Sequence[Region], values: Tensor) -> dict[str, Tensor]:
    """Return the optimizer state of a machine's parameters [n], by name; each name has a file of whole tensors."""
    state = {}
    for name, file in training.optimizer_state.items():
        state[name] = torch.zeros_like(values)
        _fill_regions(state[name], regions, Path(training.folder, file))
    return state


def load_masters(training: TrainingSpec, regions: Sequence[Region], values: Tensor) -> None:
    """Fill a machine's parameters [n] as they were before a run resumed, where `initial` has them rounded."""
    if training.masters:
        _fill_regions(values, regions, Path(training.folder, training.masters))


def _fill_regions(flat: Tensor, regions: Sequence[Region], path: Path) -> None:
    with TensorReader(path) as reader:
        for region in regions:
            part = flat[region.offset : region.stop].view(region.sizes)
            reader.fill(part, region.name, region.axes, tuple(region.box))
