"""`Task`: what the user brings to be planned and trained - model, loss, data and an example batch."""

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .metrics import CollectingMetric, Metric

MEASURED = ("loss", "accuracy", "test_loss", "test_accuracy")  # without any metric of the user's


class TaskError(ValueError):
    """Raised for a task, a module or data of the user that cannot be used. facts: what is wrong; fix: what to do."""

    def __init__(self, facts: str, *, fix: str = "") -> None:
        super().__init__(facts)
        self.facts = facts
        self.fix = fix


@dataclass(frozen=True)
class Data:
    """Samples, in memory or over a file that is mapped: every tensor has them along its first dimension.

    inputs, targets: tensors or arrays of numpy, one or several; inputs by name, {"x": ...}, go to the model by keyword.
    names: of the last inputs, those that go by keyword.
    """

    inputs: tuple[Tensor, ...]
    targets: tuple[Tensor, ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        inputs: Any = self.inputs
        if isinstance(inputs, Mapping):
            object.__setattr__(self, "names", tuple(inputs))
            inputs = tuple(inputs.values())
        object.__setattr__(self, "inputs", _as_tensors(inputs))
        object.__setattr__(self, "targets", _as_tensors(self.targets))
        strange = {type(part).__name__ for part in (*self.inputs, *self.targets) if not isinstance(part, Tensor)}
        if strange:
            facts = f"inputs and targets must be tensors or arrays, not {', '.join(sorted(strange))}"
            raise TaskError(facts, fix="give tensors [samples, ...], one, several or by name")
        shapes = [tuple(t.shape) for t in (*self.inputs, *self.targets)]
        if not self.inputs or () in shapes or len({shape[0] for shape in shapes}) > 1:
            raise TaskError(
                f"inputs and targets of shapes {shapes} do not have one number of samples along their first dimension",
                fix="give at least one input, and every tensor as [samples, ...]",
            )

    def __len__(self) -> int:
        return len(self.inputs[0])

    def rows(self, index: Tensor, epochs: Tensor | None = None) -> "Data":
        """Return the samples at `index` (int64, shape [batch]), which are the same in all epochs."""
        inputs, targets = ([t.index_select(0, index) for t in part] for part in (self.inputs, self.targets))
        return Data(tuple(inputs), tuple(targets), self.names)

    def call(self, model: Callable[..., Any]) -> Any:
        """Return what a model gives for the inputs."""
        return call_by_name(model, self.inputs, self.names)


def call_by_name(model: Callable[..., Any], inputs: Sequence[Tensor], names: Sequence[str]) -> Any:
    """Call a model with inputs of which the last ones have names."""
    count = len(inputs) - len(names)
    return model(*inputs[:count], **dict(zip(names, inputs[count:], strict=True)))


def _as_tensors(values: Any) -> tuple[Tensor, ...]:
    """Return tensors over the same memory. Nobody writes to samples, so it may be that of a file mapped for reading."""
    several = values if isinstance(values, tuple | list) else (values,)
    if all(isinstance(value, Tensor) for value in several):  # as in every step; to change warnings takes longer
        return tuple(several)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return tuple(torch.from_numpy(value) if isinstance(value, np.ndarray) else value for value in several)


def count_correct_classes(outputs: Tensor, *targets: Tensor) -> int:
    """Count the samples whose largest output [batch, classes] is at the target class [batch]."""
    classes = targets[0] if targets else torch.empty(0)
    if outputs.dim() != 2 or classes.dim() != 1 or classes.is_floating_point():
        shapes = f"outputs {tuple(outputs.shape)} and {classes.dtype} targets {tuple(classes.shape)}"
        raise TaskError(f"{shapes} are not those of a classification", fix="give the task correct=...")
    return int((outputs.argmax(1) == targets[0]).sum())


@dataclass(frozen=True)
class Task:
    """A model, its loss, its data and an example batch.

    model: makes the module; called on the meta device for planning, so it must not read weights from disk.
    loss: `loss(outputs, *targets)` gives a scalar, the mean over the batch; outputs is what the model gives.
    example: `example(batch)` gives a batch of the right shapes and dtypes; the values do not matter. By default the
        first training samples.
    data: `data(split)` with split "train" or "test" gives `Data`, a torch Dataset with numbered samples, an
        IterableDataset, a DataLoader of either, a dataset of Hugging Face, `Parts`, or any sequence of samples; None
        for a task that is only planned.
    correct: `correct(outputs, *targets)` counts correct answers in a batch, for test accuracy; outputs is the first
        tensor of what the model gives. By default the class with the largest output counts, where outputs and targets
        are those of a classification; None for no accuracy.
    unpack: makes `Data` of a collated batch of a dataset. By default the last part of a tuple is the target; the parts
        of a dict are inputs by keyword, and "labels" is the target, too.
    loaders: processes that read a dataset beside each process that trains; by default `num_workers` of a DataLoader,
        or else two, and up to eight where training waits for them. With 0 it is read in between, by the process that
        trains.
    metrics: what else is measured on test samples, by name; see metrics.py. They get what `loss` gets.
    parts: into how many an IterableDataset is divided, by default 8; runs that resume need the same number. samples:
        that an epoch of it has, where it has no len().
    batch: samples of a step and replica, unless the command line names another number.
    epochs: passes over the training samples that it takes to learn them well, unless the command line names another
        number.
    rate_scale: how many times an optimizer's own learning rate suits it, unless the command line names a rate.
    leaf_modules: globs of module names ("encoder.layers.*"); such a module is one operator of the plan, whose inside
        is not traced and may branch on data.
    """

    name: str
    model: Callable[[], nn.Module]
    loss: Callable[..., Tensor]
    example: Callable[[int], Data] | None = None
    data: Callable[[str], Any] | None = None
    correct: Callable[..., int] | None = field(default=count_correct_classes)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    unpack: Callable[[Any], Data] | None = None
    loaders: int | None = None
    parts: int | None = None
    samples: int | None = None
    batch: int = 32
    epochs: int = 1
    rate_scale: float = 1.0
    leaf_modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_metrics()
        if self.loaders is not None and self.loaders < 0:
            raise TaskError(f"task {self.name!r} has {self.loaders} loaders", fix="give 0 or more, or leave it out")
        for name, value in (("parts", self.parts), ("samples", self.samples)):
            if value is not None and value < 1:
                raise TaskError(f"task {self.name!r} has {name}={value}", fix="give 1 or more, or leave it out")
        for name, value in (("batch", self.batch), ("epochs", self.epochs)):
            if value < 1:
                raise TaskError(f"task {self.name!r} has {name}={value}", fix=f"give {name}=1 or more")
        if not 0 < self.rate_scale < math.inf:
            raise TaskError(f"task {self.name!r} has rate_scale={self.rate_scale}", fix="give a number above 0")

    def _check_metrics(self) -> None:
        if not isinstance(self.metrics, Mapping):
            facts = f"task {self.name!r} has metrics={self.metrics!r}"
            raise TaskError(facts, fix='name each: metrics={"perplexity": compute_perplexity}')
        for name, metric in self.metrics.items():
            facts = f"task {self.name!r} has a metric called {name!r}"
            if not isinstance(name, str) or not name.strip() or not name.isprintable():
                raise TaskError(facts, fix="give it a name of letters that can be printed")
            if name in MEASURED:
                raise TaskError(facts, fix="another name; test loss and accuracy are measured without that")
            if not callable(metric) and not isinstance(metric, CollectingMetric):
                fix = "give a function of outputs and targets, or an object with update, compute and reset"
                raise TaskError(f"metric {name!r} of task {self.name!r} is {metric!r}", fix=fix)

    def list_readers(self) -> list[Callable[..., Any]]:
        """Return whatever reads all that the model gives in evaluation, called as `reader(outputs, *targets)`."""
        metrics = [copy.deepcopy(one) for one in self.metrics.values()]
        return [self.loss, *(one.update if isinstance(one, CollectingMetric) else one for one in metrics)]

    def build(self, *, seed: int, device: str = "cpu") -> nn.Module:
        """Build the module, with weights drawn from `seed`, or without storage on device "meta"."""
        with torch.random.fork_rng(devices=[]), torch.device(device):
            torch.manual_seed(seed)
            module = self.model()
        if not isinstance(module, nn.Module):
            raise TaskError(
                f"the model of task {self.name!r} gives {type(module).__name__}, not a torch.nn.Module",
                fix="let `model` be a function without arguments that returns the module",
            )
        return module


def make_example_batches(
    inputs: tuple[tuple[int, ...], ...], *, classes: int | None = None, dtype: torch.dtype = torch.float32
) -> Callable[[int], Data]:
    """Make a function for `Task.example` that returns batches of zeros.

    inputs: shapes without the batch. classes: if given, class labels are the targets. dtype: of the inputs.
    """

    def example(batch: int) -> Data:
        tensors = tuple(torch.zeros((batch, *shape), dtype=dtype) for shape in inputs)
        targets = () if classes is None else (torch.zeros(batch, dtype=torch.int64),)
        return Data(tensors, targets)

    return example
