"""What a loss must be: a number with a gradient."""

from typing import Any

import torch
from torch import Tensor, nn

from ...errors import BadInput


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
