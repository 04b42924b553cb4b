"""A dry run before any process is started: a batch goes through the model, the loss and all that scores it.

The task's data is compared with its example, too. What is wrong gets a plain error at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from ...errors import BadInput
from ...models.task import Data
from ...partition.ir.autocast import autocast_context
from ...partition.ir.empty_copy import empty_copy, empty_like
from ...partition.ir.pytree import first_tensor
from ...partition.operators.step_module import demand_loss
from ...runtime.worker.flat_gradient import SparseTable
from ...runtime.worker.uncut_worker import find_sparse_tables
from ..blame import blame
from ..samples.batch_maker import describe_form, describe_samples
from ..samples.dataset_samples import Samples
from ..samples.part_samples import PartSamples, buckets_of, take_first
from ..samples.read_samples import read_samples, read_split
from ..task.meta_model import build_without_weights
from ..task.scores import Scorer, Scores

if TYPE_CHECKING:
    from ...models.task import Task


UNDIVIDED = (
    "{} is the same in every part, as it does not look at torch.utils.data.get_worker_info(): whoever trains reads all"
)


@dataclass(frozen=True)
class DryRun:
    """What a dry run has found.

    samples: how many an epoch has to train on, 0 where nobody knows; parts: of a stream, 0 of numbered ones. tables:
    parts of the flat parameters of a whole model whose gradients are sparse. scores: those of a test batch, None where
    they are not known. notes: what the user should know. has_buckets: whether batches are of one bucket each.
    """

    samples: int
    tables: Sequence[SparseTable] = ()
    scores: Scores | None = None
    notes: tuple[str, ...] = ()
    parts: int = 0
    has_buckets: bool = False

    @classmethod
    def of(cls, train: Samples | PartSamples, **found: Any) -> "DryRun":
        """Return what was found, with what is known of the training samples."""
        if not isinstance(train, PartSamples):
            return cls(len(train), **found, has_buckets=buckets_of(train) is not None)
        found["notes"] = (*found.get("notes", ()), *([] if train.is_divided else [UNDIVIDED.format(train.what)]))
        return cls(train.total or 0, **found, parts=train.parts)


def dry_run(
    task: "Task",
    model: nn.Module,
    example: Data,
    *,
    has_leaf_modules: bool = False,
    autocast: str = "",
    uncut: bool = False,
) -> DryRun:
    """Put a batch of training samples, as large as `example`, through `model`.

    has_leaf_modules: no trace has shown whether the loss has a gradient. autocast: the dtype in which torch.autocast
    computes it, if it does. uncut: no trace has shown anything; and whether to look for tables.

    Raises BadInput where the data is missing or unlike the example, where the batch does not go through, and where
    there is nothing to train.
    """
    train, test = _read_splits(task, model, example, exactly=not uncut)
    index = torch.arange(len(example))
    untraced = uncut or has_leaf_modules
    with torch.set_grad_enabled(untraced), torch.random.fork_rng(devices=[]), autocast_context(autocast):
        loss = _compute_loss(task, model.train(), take_first(train, len(example)))
    scores, notes = _score(task, model.eval(), test.rows(index % len(test)), autocast)
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    tables = find_sparse_tables(loss, parameters) if uncut else ()
    return DryRun.of(train, tables=tables, scores=scores, notes=notes)


def dry_run_without_weights(
    task: "Task", example: Data, *, has_leaf_modules: bool = False, autocast: str = ""
) -> DryRun:
    """Do as `dry_run`, for a model that is too large for one process: loss and right answers get random outputs.

    has_leaf_modules: some modules may branch on data, so that nobody knows the shapes of their outputs.
    """
    model = build_without_weights(task)
    train, test = _read_splits(task, model, example, exactly=True)
    if has_leaf_modules:
        return DryRun.of(train)
    index = torch.arange(len(example))
    with torch.no_grad(), torch.random.fork_rng(devices=[]), autocast_context(autocast):
        _compute_loss(task, _RandomOutputs(model.train()), take_first(train, len(example)))
    scores, notes = _score(task, _RandomOutputs(model.eval()), test.rows(index % len(test)), autocast)
    return DryRun.of(train, scores=scores, notes=notes)


class _RandomOutputs(nn.Module):
    """Gives random values of the shapes that a model without values computes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        with self._mode:
            memo = {tensor: empty_like(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self._copy = empty_copy(model, memo.__getitem__)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        with self._mode:
            fakes = [self._mode.from_tensor(tensor) for tensor in inputs]
            output = self._copy(*fakes, **{name: self._mode.from_tensor(tensor) for name, tensor in named.items()})
        return tree_map(lambda leaf: _random_like(leaf) if isinstance(leaf, Tensor) else leaf, output)


def _random_like(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return torch.rand(tensor.shape, dtype=tensor.dtype)
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


def _read_splits(
    task: "Task", model: nn.Module, example: Data, *, exactly: bool
) -> tuple[Samples | PartSamples, Samples]:
    """Return training and test data, which are like the example; BadInput else, and where nothing is to be trained.

    exactly: all samples have one shape; a model that is not cut may take various ones.
    """
    train, test = read_samples(task, "train", one_shape=exactly), read_split(task, "test", one_shape=exactly)
    for split, data in (("train", train), ("test", test)):
        first = data if isinstance(data, Data) else take_first(data, 1)
        has_one_shape = isinstance(data, Data) or (exactly and buckets_of(data) is None)
        _check_alike(task, example, first, split, exactly=has_one_shape)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise BadInput(
            "E316", f"the model of task {task.name} has no parameter to train", fix="requires_grad=True for some"
        )
    return train, test


def _check_alike(task: "Task", example: Data, data: Data, split: str, *, exactly: bool) -> None:
    """Raise BadInput unless samples have the shapes and dtypes of the example, for which the model is cut."""
    if example.names != data.names:
        facts = f"the {split} data of task {task.name} has inputs named {data.names}, its example {example.names}"
        raise BadInput("E313", facts, fix="let example(batch) give the names of the data")
    pairs = (("inputs", example.inputs, data.inputs), ("targets", example.targets, data.targets))
    for what, expected, actual in pairs:
        forms = [[describe_form(one, exactly=exactly) for one in tensors] for tensors in (expected, actual)]
        if forms[0] != forms[1]:
            raise BadInput(
                "E313",
                f"the {split} data of task {task.name} has {what} of {describe_samples(actual)} a sample, its example "
                f"of {describe_samples(expected)}",
                fix="let example(batch) give the shapes and dtypes of the data",
            )


def _compute_loss(task: "Task", model: nn.Module, batch: Data) -> Tensor:
    """Return the loss of a batch; BadInput where there is none."""
    shapes = ", ".join(describe_form(tensor, exactly=True) for tensor in (*batch.inputs, *batch.targets))
    with blame("E314", f"the first training batch of task {task.name} ({len(batch)} x {shapes})"):
        loss: Any = task.loss(batch.call(model), *batch.targets)
    return demand_loss(loss, model)


@torch.no_grad()
def _score(task: "Task", model: nn.Module, batch: Data, autocast: str) -> tuple[Scores, tuple[str, ...]]:
    """Return the scores of a batch, and notes on what is not measured; BadInput where nothing can be."""
    first = f"the first test batch of task {task.name}"
    with blame("E314", first), torch.random.fork_rng(devices=[]), autocast_context(autocast):
        output = batch.call(model)
    if first_tensor(output) is None:
        raise BadInput(
            "E314", f"the model of task {task.name} gives no tensor in evaluation mode", fix="return the output first"
        )
    scorer = Scorer(task, autocast=autocast)
    scorer.add(output, batch.targets, size=len(batch), count=len(batch))
    scores = scorer.finish()
    if not scorer.failure:
        return scores, ()
    if scores.correct is None and not scores.metrics:
        facts = f"the loss of task {task.name} fails on what the model gives in evaluation mode: {scorer.failure}"
        fix = "let it take that, or give the task correct=... or metrics={...}: else test samples have no score"
        raise BadInput("E315", facts, fix=fix)
    return scores, (f"no test loss: the loss fails on what the model gives in evaluation mode: {scorer.failure}",)
