"""A rehearsal: before any process is started, the task's data is compared with its example, and a batch of it goes
through the model, the loss and the count of right answers. What is wrong then gets a plain answer at once.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..models.task import Data
from ..partition.errors import BadInput
from ..partition.structure import first_tensor
from .load import blame, read_split

if TYPE_CHECKING:
    from ..models.task import Task


def rehearse(task: "Task", model: nn.Module, example: Data) -> int:
    """The number of training samples; a batch of them, as large as `example`, has gone through `model`.

    BadInput where the data is missing or unlike the example, where the batch does not go through, and where there is
    nothing to train.
    """
    train, test = read_split(task, "train"), read_split(task, "test")
    for split, data in (("train", train), ("test", test)):
        _demand_alike(task, example, data, split)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise BadInput(
            "E316", f"the model of task {task.name} has no parameter to train", fix="requires_grad=True for some"
        )
    index = torch.arange(len(example))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        _step(task, model.train(), train.rows(index % len(train)))
        _count(task, model.eval(), test.rows(index % len(test)))
    return len(train)


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


def _step(task: "Task", model: nn.Module, batch: Data) -> None:
    shapes = ", ".join(_sample(tensor) for tensor in (*batch.inputs, *batch.targets))
    with blame("E314", f"the first training batch of task {task.name} ({len(batch)} x {shapes})"):
        loss: Any = task.loss(model(*batch.inputs), *batch.targets)
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise BadInput("E322", f"the loss must be a scalar tensor, not {shape}", fix="take the mean over the batch")


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
