"""`ScriptRun`: what a user's script has in hand that keeps its own loop; `connect` returns it.

In a script that `cutset launch` has started it is one replica of a run. In any other it is all alone, and changes
nothing: so the script still runs as it is.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from ...errors import BadInput
from ...ps.optimizers.parameter_groups import Grouped
from ...ps.optimizers.rates import RatedOptimizer, Scheduled
from ...ps.optimizers.schedule import GivenRate
from ...ps.slices.region import Region
from ...runtime.channel.channel import Channel
from ...runtime.hosts.heartbeat import RoleProgress
from ...runtime.worker.flat_layout import find_flat_dtype, sort_for_flat_buffer
from ..config.group_optimizer import list_ties
from ..job.initial_weights import state_names
from ..job.process_specs import WorkerSpec
from ..tensor_files import save_state
from .data_share import share_loader
from .loop_counts import LoopCounts
from .script_worker import ScriptWorker
from .torch_optimizer import SharedOptimizer, translate_optimizer


class ModelDescription(msgspec.Struct, frozen=True):
    """What the launcher has to know of what a script prepares.

    regions: where the trained parameters lie in the flat buffer. names: from each in the state_dict to the one that the
    run has for the tensor. optimizer: of the shards. batch: samples of a batch, 1 where nobody knows. samples: of the
    data set, 0 where nobody knows, or their order does not depend on it.
    """

    regions: list[Region]
    names: dict[str, str]
    optimizer: RatedOptimizer | Grouped
    batch: int
    samples: int = 0


class Described(BaseException):
    """Ends a script that was run to learn what it prepares, and nothing more; no error, so that nothing catches it."""

    def __init__(self, description: ModelDescription) -> None:
        super().__init__("the model is described")
        self.description = description


class Describing(msgspec.Struct, frozen=True):
    """What a script is told that is to describe what it prepares. weights: the file that it writes its weights to."""

    weights: str


class Connection:
    """What the process of a script has of its run: a spec to train by, or the request to describe what it prepares."""

    def __init__(self, channel: Channel, spec: WorkerSpec | Describing, progress: RoleProgress) -> None:
        self.channel, self.spec, self.progress = channel, spec, progress


class ScriptRun:
    """One replica of a run, or all of it where the script runs alone.

    Attributes:
        replica, replicas: the number of this one, and how many there are: for random numbers of one's own, say.
        start_step: with which this process begins, known once it has prepared: more than 0 where a lost replica, or a
            run, goes on.
    """

    def __init__(self, connection: Connection | None) -> None:
        self._connection, self._result = connection, dict[str, Any]()
        self._worker: ScriptWorker | None = None
        self._has_prepared = False
        self.replica, self.replicas, self.start_step = 0, 1, 0
        if connection is not None and isinstance(connection.spec, WorkerSpec):
            spec = connection.spec
            self.replica, self.replicas, self.start_step = spec.replica, spec.training.replicas, spec.start_step

    @property
    def is_main(self) -> bool:
        """Whether this is the replica that prints, evaluates and saves."""
        return self.replica == 0

    def prepare(self, *objects: Any, batch: int | None = None) -> Any:
        """Return the model, the optimizer and what else is given, in their order, as this replica is to use them.

        The model is the same object with the run's first weights. The optimizer's `step` pushes gradients. Of a
        DataLoader, or another iterable over batches of training data, it reads its share; a scheduler goes on where a
        lost replica was. batch: samples of a step, for the count of them; by default of a batch of the loader, or 1.
        BadInput where the shards cannot do what the script does.
        """
        if self._connection is None:
            return objects
        if self._has_prepared:
            raise BadInput("E363", "run.prepare is called twice", fix="give it all at once")
        self._has_prepared = True
        model = _find_one(objects, nn.Module, "model")
        optimizer = _find_one(objects, torch.optim.Optimizer, "optimizer")
        others = [one for one in objects if one is not model and one is not optimizer]
        schedulers = [one for one in others if isinstance(one, LRScheduler)]
        data = [one for one in others if not isinstance(one, LRScheduler)]
        if len(data) > 1:
            facts = f"run.prepare is given {len(data)} sources of data"
            raise BadInput("E362", facts, fix="give it the training data alone; test data is for whoever evaluates")
        description = describe_model(model, optimizer, data, batch=batch)
        spec = self._connection.spec
        if isinstance(spec, Describing):
            save_state(Path(spec.weights), _list_weights(model))
            raise Described(description)
        if description.regions != spec.regions:
            facts = "the script prepares another model than before: other parameters, or other shapes"
            raise BadInput("E363", facts, fix="build the same model whenever the script runs")
        counts = LoopCounts()
        trained = [region.name for region in description.regions]
        worker = ScriptWorker(self._connection.channel, spec, self._connection.progress, model, trained, counts)
        self._worker, self.start_step = worker, worker.start_step
        for scheduler in schedulers:
            counts.watch(scheduler)
        shared = SharedOptimizer(optimizer, worker.take_step, goes_on=worker.start_step > 0)
        seed = spec.training.seed
        made = {id(optimizer): shared}
        made |= {id(one): share_loader(one, self.replica, self.replicas, seed=seed, counts=counts) for one in data}
        return tuple(made.get(id(one), one) for one in objects)

    @property
    def is_passing_over(self) -> bool:
        """Whether the loop is in a pass over its data that was made before it was resumed, and has no batch."""
        return self._worker is not None and self._worker.counts.is_over

    def report(
        self,
        *,
        loss: float | None = None,
        test_loss: float | None = None,
        test_accuracy: float | None = None,
        **metrics: float,
    ) -> None:
        """Take note of the loss of the present step, or of scores, which are a point of the learning curve then."""
        if self._worker is None:
            return
        scores = {"test_loss": test_loss, "test_accuracy": test_accuracy}
        has_scores = bool(metrics) or any(value is not None for value in scores.values())
        numbers = {name: None if value is None else float(value) for name, value in scores.items()}
        point = {**numbers, "metrics": {name: float(value) for name, value in metrics.items()}}
        self._worker.report(None if loss is None else float(loss), point if has_scores else None)

    def finish(self) -> None:
        """End the training: wait for all replicas, and have what was trained in the model. No step may follow."""
        if self._worker is not None and not self._worker.has_finished:
            self._result = self._worker.finish()

    def complete(self) -> dict[str, Any]:
        """Finish, unless the script has, and return the result of this replica."""
        if self._worker is None:
            facts = "the script ended and has not called run.prepare(model, optimizer, ...)"
            raise BadInput("E363", facts, fix="run = cutset.connect(), and run.prepare before the loop")
        self.finish()
        return self._result

    def __repr__(self) -> str:
        return f"ScriptRun(replica {self.replica} of {self.replicas}, from step {self.start_step})"


def describe_model(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Sequence[Any], *, batch: int | None = None
) -> ModelDescription:
    """Return what the launcher has to know. BadInput where the optimizer is not one of the model, or of the shards."""
    options = translate_optimizer(optimizer)
    groups = {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
    named = [(name, p) for name, p in model.named_parameters() if id(p) in groups and p.requires_grad]
    known = {id(p) for p in model.parameters()}
    if any(key not in known for key in groups) or not named:
        facts = "the optimizer that run.prepare is given trains other parameters than the model's"
        raise BadInput("E363", facts, fix="make it of model.parameters()")
    find_flat_dtype(p.dtype for _, p in named)
    numbers = {name: groups[id(p)] for name, p in named}
    regions, offset, ranges = list[Region](), 0, list[tuple[int, int]]()
    for name, parameter in sort_for_flat_buffer(named, lambda item: item[1].numel()):
        shape = list(parameter.shape)
        regions.append(Region(name, shape, shape, [(0, n) for n in shape], offset))
        offset += parameter.numel()
        if ranges and ranges[-1][1] == numbers[name]:
            ranges.pop()
        ranges.append((offset, numbers[name]))
    rated: list[RatedOptimizer] = [Scheduled(one, GivenRate()) for one in options]
    shared = Grouped(rated, [ranges]) if len(rated) > 1 else rated[0]
    return ModelDescription(regions, state_names(model), shared, batch or _find_batch(data), _count_samples(data))


def _find_batch(data: Sequence[Any]) -> int:
    """Return the samples of a batch of a DataLoader, or of the sampler that makes its batches; 1 where neither says."""
    loaders = [one for one in data if isinstance(one, DataLoader)]
    sizes = [size for one in loaders for size in (one.batch_size, getattr(one.batch_sampler, "batch_size", None))]
    return next((size for size in sizes if isinstance(size, int) and size > 0), 1)


def _count_samples(data: Sequence[Any]) -> int:
    """Return the samples of the data set of a DataLoader whose order depends on them, 0 where nobody knows."""
    for one in data:
        if isinstance(one, DataLoader) and not isinstance(one.dataset, IterableDataset):
            sampler = one.sampler if one.batch_sampler is None else getattr(one.batch_sampler, "sampler", None)
            if isinstance(sampler, SequentialSampler):
                continue  # more samples come after those that were there
            with suppress(TypeError, NotImplementedError):  # a data set need not have a length
                return len(one.dataset)  # type: ignore[arg-type]
    return 0


def _list_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by the first name of each."""
    ties = list_ties(model)
    named = [(name, p.detach()) for name, p in model.named_parameters() if ties[name] == name]
    return dict([*named, *((name, b.detach()) for name, b in model.named_buffers())])


def _find_one(objects: Sequence[Any], kind: type[Any], what: str) -> Any:
    found = [one for one in objects if isinstance(one, kind)]
    if len(found) != 1:
        facts = f"run.prepare is given {len(found)} objects that are a {what}"
        raise BadInput("E363", facts, fix="model, optimizer, data = run.prepare(model, optimizer, data)")
    return found[0]
