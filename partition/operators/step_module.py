"""`StepModule`: the model and its loss as one module, which is what a step computes; and the names of its parts.

A loss must be a number with a gradient.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import BadInput
from ..ir.output_layout import list_tensors

# Names, as of leaf modules, of what is no submodule of the model.
MODEL, LOSS, STEP = "(model)", "(loss)", "(step)"
PARTS = (MODEL, LOSS, STEP)


class LossModule(nn.Module):
    """A loss that is a function, as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Tensor:
        """Return the loss."""
        return self.function(*args)


class StepModule(nn.Module):
    """The module and its loss as one, which a training step computes; without a loss, some tensors of the output.

    names: of the last inputs, which go by keyword. wanted: which tensors, by number. before_run: called
    before the model. on_output: called with the loss, or without one with the output of the model.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor] | None, names: Sequence[str] = ()) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)
        self.wanted: tuple[int, ...] = (0,)
        self.before_run: Callable[[], None] | None = None
        self.on_output: Callable[[Any], None] | None = None
        # A module stays one: its class weights are then captured like any buffer.
        self.criterion = loss if loss is None or isinstance(loss, nn.Module) else LossModule(loss)

    def run(self, inputs: Sequence[Tensor]) -> Any:
        """Return what the model gives."""
        if self.before_run is not None:
            self.before_run()
        count = len(inputs) - len(self.names)
        return self.model(*inputs[:count], **dict(zip(self.names, inputs[count:], strict=True)))

    def forward(self, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
        """Return the loss, or the tensors of the output that are wanted."""
        output = self.run(inputs)
        if self.criterion is not None:
            loss: Tensor = self.criterion(output, *targets)
            self._hand_over(loss)
            return loss
        self._hand_over(output)
        tensors = list_tensors(output)
        if not tensors:
            raise TypeError(f"the model returns a {type(output).__name__} without a tensor")
        # A last operator for each, so that it can be collected on one machine whatever computed it.
        return tuple(torch.ops.aten.alias(tensors[number]) for number in self.wanted)

    def _hand_over(self, output: Any) -> None:
        if self.on_output is not None:
            self.on_output(output)

    def part(self, name: str) -> nn.Module:
        """Return a submodule of the model by its name, or one of `PARTS`. In evaluation the step is the model."""
        if name == STEP and self.criterion is not None:
            return self
        if name == LOSS:
            assert self.criterion is not None
            return self.criterion
        return self.model if name in (MODEL, STEP) else self.model.get_submodule(name)


def demand_loss(loss: Any, model: nn.Module) -> Tensor:
    """Return the loss; BadInput where it is no scalar, or has no gradient though gradients are on.

    model: what computed it. Where that has nothing to train, a loss has no gradient rightly.
    """
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise BadInput("E322", f"the loss must be a scalar tensor, not {shape}", fix="take the mean over the batch")
    trains = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in model.parameters())
    if trains and not loss.requires_grad:
        raise BadInput(
            "E322",
            "the loss has no gradient: no parameter would ever change",
            fix="compute it from what the model gives, without comparisons, argmax, detach() or torch.no_grad()",
        )
    return loss
