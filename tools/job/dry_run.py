"""A rehearsal: before any process is started, the task's data is compared with its example, and a batch of it goes
through the model, the loss and the count of right answers. What is wrong then gets a plain answer at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from ...models.task import Data
from ...partition.ir.autocast import autocast as autocast_in
from ...errors import BadInput
from ...partition.ir.empty_copy import empty_like, hollow
from ...partition.ir.pytree import first_tensor
from ...runtime.worker.flat_gradient import Table
from ...runtime.worker.uncut_worker import tables_of
from ..task.load_task import blame, build_model, read_split

if TYPE_CHECKING:
    from ...models.task import Task


@dataclass(frozen=True)
class Rehearsed:
    """samples: to train on. tables: of the flat parameters of an uncut model, whose gradients are sparse."""

    samples: int
    tables: Sequence[Table] = ()


def rehearse(task: "Task", model: nn.Module, example: Data, *, autocast: str = "", uncut: bool = False) -> Rehearsed:
    """A batch of training samples, as large as `example`, has gone through `model`.

    autocast: the dtype in which torch.autocast computes it, if it does. uncut: whether to look for tables.

    BadInput where the data is missing or unlike the example, where the batch does not go through, and where there is
    nothing to train.
    """
    train, test = _splits(task, model, example)
    index = torch.arange(len(example))
    with torch.no_grad(), torch.random.fork_rng(devices=[]), autocast_in(autocast):
        with torch.set_grad_enabled(uncut):
            loss = _step(task, model.train(), train.rows(index % len(train)))
        _count(task, model.eval(), test.rows(index % len(test)))
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    return Rehearsed(len(train), tables_of(loss, parameters) if uncut else ())


def rehearse_parts(task: "Task", example: Data, *, by_hand: bool = False, autocast: str = "") -> Rehearsed:
    """As `rehearse`, of a model that is too large for one process: loss and right answers get made-up outputs.

    by_hand: some of its modules may branch on data, so that nobody knows the shapes of its outputs.
    """
    model = build_model(task, seed=0, device="meta")
    train, test = _splits(task, model, example)
    if by_hand:
        return Rehearsed(len(train))
    index = torch.arange(len(example))
    with torch.no_grad(), torch.random.fork_rng(devices=[]), autocast_in(autocast):
        _step(task, _MadeUp(model.train()), train.rows(index % len(train)))
        _count(task, _MadeUp(model.eval()), test.rows(index % len(test)))
    return Rehearsed(len(train))


class _MadeUp(nn.Module):
    """Gives random values where a model without values would give some."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        with self._mode:
            memo = {tensor: empty_like(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self._hollow = hollow(model, memo.__getitem__)

    def forward(self, *inputs: Tensor) -> Any:
        with self._mode:
            output = self._hollow(*(self._mode.from_tensor(tensor) for tensor in inputs))
        return tree_map(lambda leaf: _made_up(leaf) if isinstance(leaf, Tensor) else leaf, output)


def _made_up(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return torch.rand(tensor.shape, dtype=tensor.dtype)
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


def _splits(task: "Task", model: nn.Module, example: Data) -> tuple[Data, Data]:
    """Training and test data, which are like the example, of a model that has something to train."""
    train, test = read_split(task, "train"), read_split(task, "test")
    for split, data in (("train", train), ("test", test)):
        _demand_alike(task, example, data, split)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise BadInput(
            "E316", f"the model of task {task.name} has no parameter to train", fix="requires_grad=True for some"
        )
    return train, test


def _demand_alike(task: "Task", example: Data, data: Data, split: str) -> None:
    """Samples have the shapes and dtypes of the example, for which the model is cut."""
    for what, wanted, found in (("inputs", example.inputs, data.inputs), ("targets", example.targets, data.targets)):
        if [_sample(t) for t in wanted] != [_sample(t) for t in found]:
            raise BadInput(
                "E313",
                f"the {split} data of task {task.name} has {what} of {_samples(found)} a sample, its example of "
                f"{_samples(wanted)}",
                fix="let example(batch) give the shapes and dtypes of the data",
            )


def _sample(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape[1:])}"


def _samples(tensors: tuple[Tensor, ...]) -> str:
    return " and ".join(_sample(tensor) for tensor in tensors) or "none"


def _step(task: "Task", model: nn.Module, batch: Data) -> Tensor:
    """The loss of a batch."""
    shapes = ", ".join(_sample(tensor) for tensor in (*batch.inputs, *batch.targets))
    with blame("E314", f"the first training batch of task {task.name} ({len(batch)} x {shapes})"):
        loss: Any = task.loss(model(*batch.inputs), *batch.targets)
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise BadInput("E322", f"the loss must be a scalar tensor, not {shape}", fix="take the mean over the batch")
    return loss


def _count(task: "Task", model: nn.Module, batch: Data) -> None:
    with blame("E314", f"the first test batch of task {task.name}"):
        output = model(*batch.inputs)
    first = first_tensor(output)
    if first is None:
        raise BadInput(
            "E314", f"the model of task {task.name} gives no tensor in evaluation mode", fix="return the output first"
        )
    fix = "give the task correct=..., which counts the right answers among outputs and targets"
    if first is not output:
        fix += "; it gets the first tensor of the model's output, not all of it"
    with blame("E315", f"correct of task {task.name} for an output of shape {tuple(first.shape)}", fix=fix):
        right = float(task.correct(first, *batch.targets))
    if not right.is_integer() or not 0 <= right <= len(batch):
        raise BadInput("E315", f"correct of task {task.name} counts {right} right answers of {len(batch)}", fix=fix)
