"""Parameters that a run does not train, though their model would."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from ...models.task import Task


def freeze(task: "Task", names: Sequence[str]) -> "Task":
    """Return a task whose model does not train the parameters of these names."""

    def build() -> "nn.Module":
        model = task.model()
        for name in names:
            model.get_parameter(name).requires_grad_(False)
        return model

    return replace(task, model=build) if names else task
